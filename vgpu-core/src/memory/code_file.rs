//! What code takes, as far as its file tells before the driver loads it: instructions and static variables.
//!
//! | file | what counts |
//! |---|---|
//! | ELF (a cubin) | its sections that are loaded, also those without bytes in the file (`__device__` arrays) |
//! | PTX | its `.global` variables |
//! | a fat binary | nothing: it has code for several kinds of GPU, of which the driver loads one, and may be compressed |
//!
//! How it fails: a file that ends early, cannot be read or is of another kind counts as nothing, and is charged as code
//! of unknown size ([`expected`](super::expected)). The driver may need more than the sections say; the measurement
//! after the call finds that.

use super::expected::Code;

/// Memory or a file from which code is read.
pub trait Bytes {
    /// Reads from `at` on. Returns how many bytes there are, at most as many as fit.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;
}

const ELF: &[u8] = b"\x7fELF\x02";
const WRAPPER: &[u8] = &0x4662_43b1_u32.to_le_bytes();
const FAT_BINARY: &[u8] = &0xba55_ed50_u32.to_le_bytes();
/// Longer text is not searched further.
const LONGEST_TEXT: usize = 64 << 20;
/// As much of a file is compared with others.
const COMPARED: u64 = 64 << 10;

/// Describes the code at `at`.
pub fn of(bytes: &impl Bytes, at: u64) -> Code {
    let head: [u8; 64] = array(bytes, at);
    if head.starts_with(WRAPPER) {
        return one(bytes, word(&head, 8));
    }
    one(bytes, at)
}

fn one(bytes: &impl Bytes, at: u64) -> Code {
    let head: [u8; 64] = array(bytes, at);
    let (length, takes) = if head.starts_with(ELF) {
        elf(bytes, at, &head)
    } else if head.starts_with(FAT_BINARY) {
        let length = word(&head, 8).saturating_add(half(&head, 6));
        (length, 0)
    } else {
        let text = text(bytes, at);
        (text.len() as u64, globals(&text))
    };
    let mut start = vec![0; length.min(COMPARED) as usize];
    let read = bytes.read(at, &mut start);
    Code {
        // Also of what it tells: the start of a cubin is not where its sections are.
        mark: mark(
            start.get(..read).unwrap_or_default(),
            length.wrapping_add(takes.rotate_left(32)),
        ),
        bytes: takes,
    }
}

/// Returns the length of an ELF file and what its sections take.
fn elf(bytes: &impl Bytes, at: u64, head: &[u8; 64]) -> (u64, u64) {
    const ALLOCATED: u64 = 2;
    const NO_BITS: u64 = 8;
    const SHARED: &[u8] = b".nv.shared";
    let table = word(head, 40);
    let (size, count, names) = (half(head, 58), half(head, 60), half(head, 62));
    if size < 64 {
        return (0, 0);
    }
    let section = |index: u64| -> [u8; 64] {
        let offset = table.saturating_add(index * size);
        array(bytes, at.saturating_add(offset))
    };
    let name_table = word(&section(names), 24);
    let mut end = table.saturating_add(count * size);
    let mut takes = 0_u64;
    for index in 0..count {
        let header = section(index);
        let (name, kind) = (word(&header, 0) & 0xffff_ffff, word(&header, 4) & 0xffff_ffff);
        let (flags, offset, length) = (word(&header, 8), word(&header, 24), word(&header, 32));
        if kind != NO_BITS {
            end = end.max(offset.saturating_add(length));
        }
        // Shared memory is on the chip.
        let named: [u8; 10] = array(bytes, at.saturating_add(name_table).saturating_add(name));
        if flags & ALLOCATED != 0 && named != SHARED {
            takes = takes.saturating_add(length);
        }
    }
    (end, takes)
}

/// Returns the bytes up to the first 0.
fn text(bytes: &impl Bytes, at: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while text.len() < LONGEST_TEXT {
        let read = bytes.read(at.saturating_add(text.len() as u64), &mut part);
        let part = part.get(..read).unwrap_or_default();
        match part.iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend(part.iter().take(end));
                break;
            }
            None if read == 0 => break,
            None => text.extend(part),
        }
    }
    text
}

/// Returns what the `.global` variables of PTX take: `.global .align 4 .b8 name[16][4];`
fn globals(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    let mut words = text.split_ascii_whitespace();
    let mut sum = 0_u64;
    while let Some(word) = words.next() {
        if word != ".global" {
            continue;
        }
        let mut element = 1;
        let mut declared = String::new();
        while let Some(word) = words.next() {
            match word.strip_prefix('.') {
                Some("align") => drop(words.next()),
                Some(kind) => element = u64::saturating_mul(element, size_of_kind(kind)),
                None => declared.push_str(word),
            }
            if word.contains([';', '=', '{']) {
                break;
            }
        }
        let declared = declared.split([';', '=']).next().unwrap_or_default();
        let dimensions = declared.split('[').skip(1);
        let dimensions = dimensions.filter_map(|part| part.split(']').next()?.parse::<u64>().ok());
        sum = sum.saturating_add(dimensions.fold(element, u64::saturating_mul));
    }
    sum
}

/// Returns the bytes of a type such as `b32`, or the elements of a vector such as `v4`.
fn size_of_kind(kind: &str) -> u64 {
    let number = kind.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let number = number.parse::<u64>().unwrap_or(1);
    if kind.starts_with('v') {
        number
    } else {
        number.div_ceil(8)
    }
}

/// Equal for equal bytes of equal length.
fn mark(bytes: &[u8], length: u64) -> u64 {
    bytes.chunks(8).fold(length, |mark, part| {
        let mut eight = [0; 8];
        eight.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        let mixed = (mark ^ u64::from_le_bytes(eight)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 29
    })
}

/// Bytes that are not there are 0.
fn array<const N: usize>(bytes: &impl Bytes, at: u64) -> [u8; N] {
    let mut into = [0; N];
    let read = bytes.read(at, &mut into);
    into.iter_mut().skip(read).for_each(|byte| *byte = 0);
    into
}

fn word(head: &[u8; 64], at: usize) -> u64 {
    let eight = head.get(at..at + 8).and_then(|part| part.try_into().ok());
    u64::from_le_bytes(eight.unwrap_or_default())
}

fn half(head: &[u8; 64], at: usize) -> u64 {
    let two = head.get(at..at + 2).and_then(|part| part.try_into().ok());
    u16::from_le_bytes(two.unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for &[u8] {
        fn read(&self, at: u64, into: &mut [u8]) -> usize {
            let there = usize::try_from(at)
                .ok()
                .and_then(|at| self.get(at..))
                .unwrap_or_default();
            into.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
            there.len().min(into.len())
        }
    }

    /// An ELF file with these sections: name, type, flags, size.
    fn elf_with(sections: &[(&str, u32, u64, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut table = vec![0; 64];
        for (name, kind, flags, size) in sections {
            let mut header = [0; 64];
            header[0..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            table.extend(header);
            names.extend(name.bytes().chain([0]));
        }
        let mut last = [0; 64];
        last[24..32].copy_from_slice(&64_u64.to_le_bytes());
        last[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
        table.extend(last);
        let mut file = ELF.to_vec();
        file.resize(64, 0);
        file[40..48].copy_from_slice(&(64 + names.len() as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&(sections.len() as u16 + 2).to_le_bytes());
        file[62..64].copy_from_slice(&(sections.len() as u16 + 1).to_le_bytes());
        file.extend(names);
        file.extend(table);
        file
    }

    #[test]
    fn static_variables_count_though_the_file_has_no_bytes_of_them() {
        const GIB: u64 = 1 << 30;
        let file = elf_with(&[
            (".text.kernel", 1, 6, 4096),
            (".nv.global", 8, 3, 59 * GIB),
            (".nv.shared.kernel", 8, 3, 1 << 16),
            (".debug_info", 1, 0, 1 << 20),
        ]);
        let code = of(&file.as_slice(), 0);
        assert_eq!(code.bytes, 59 * GIB + 4096);
        assert_eq!(of(&file.as_slice(), 0).mark, code.mark);
        let mut other = file.clone();
        other[66] ^= 1;
        assert_ne!(of(&other.as_slice(), 0).mark, code.mark);
    }

    #[test]
    fn the_variables_of_ptx_count() {
        let text = b".version 8.0\n.target sm_90\n.visible .global .align 4 .b8 big[1024][3];\n\
                     .global .u64 one = 5;\n.global .align 16 .v4 .f32 four[2];\n\
                     .entry k() { ld.global.u32 %r1, [big]; }\0.global .b8 behind[99999];";
        assert_eq!(of(&text.as_slice(), 0).bytes, 3072 + 8 + 32);
        assert_eq!(of(&b"".as_slice(), 0).bytes, 0);
    }

    #[test]
    fn a_fat_binary_counts_as_nothing_and_is_known_again_also_behind_its_wrapper() {
        let mut file = WRAPPER.to_vec();
        file.extend([1, 0, 0, 0]);
        file.extend(24_u64.to_le_bytes());
        file.extend([0; 8]);
        file.extend(FAT_BINARY);
        file.extend([1, 0, 16, 0]);
        file.extend((10_u64 << 20).to_le_bytes());
        let code = of(&file.as_slice(), 0);
        assert_eq!((code.bytes, code.mark == 0), (0, false));
        file.pop();
        file.push(1);
        assert_ne!(of(&file.as_slice(), 0).mark, code.mark, "another length");
    }

    #[test]
    fn whatever_is_there_is_read_without_a_panic() {
        let file = elf_with(&[(".text", 1, 6, u64::MAX), (".nv.global", 8, 3, u64::MAX)]);
        for end in 0..file.len() {
            of(&&file[..end], 0);
        }
        for byte in 0..file.len() {
            let mut broken = file.clone();
            broken[byte] = 0xff;
            of(&broken.as_slice(), 0);
        }
        of(&file.as_slice(), u64::MAX);
    }
}
