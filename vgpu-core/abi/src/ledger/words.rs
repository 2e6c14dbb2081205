//! Numbers in the bytes of a ledger, which a tenant can cut off anywhere: missing numbers are 0.

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let raw = bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok());
    u64::from_le_bytes(raw.unwrap_or_default())
}

pub(super) fn half(bytes: &[u8], at: usize) -> u32 {
    let raw = bytes.get(at..at + 4).and_then(|raw| raw.try_into().ok());
    u32::from_le_bytes(raw.unwrap_or_default())
}
