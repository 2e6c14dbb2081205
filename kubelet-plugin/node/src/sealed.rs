//! The format of a record in a file: JSON with a version and a checksum.
//!
//! ```text
//! {"version":1,"crc32":"1a2b3c4d","payload":{...}}
//! ```
//!
//! The checksum covers the payload's bytes as they were written, so that a release that adds a field still reads the records
//! of an older one. A field added within a version must have a default.
//!
//! Failure modes: a file that was truncated, edited, or written by a release with another version is [`Damage`], which says
//! so. The caller decides what it does without the record.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use vgpu_abi::checksum::crc32;

/// Why a file is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("is not what this plugin writes: {0}")]
    Format(String),
    #[error("has version {found}, and this release reads version {reads}")]
    Version { found: u32, reads: u32 },
    #[error("has checksum {found} instead of {said}: it was truncated or edited")]
    Checksum { said: String, found: String },
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    version: u32,
    crc32: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Returns the bytes of a record's file.
///
/// # Errors
/// The payload is not representable in JSON.
pub fn seal<T: Serialize>(version: u32, payload: &T) -> serde_json::Result<Vec<u8>> {
    let payload = serde_json::value::to_raw_value(payload)?;
    let mut bytes = serde_json::to_vec(&Sealed {
        version,
        crc32: format!("{:08x}", crc32(payload.get().as_bytes())),
        payload: &payload,
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns the record in the bytes of a file.
///
/// # Errors
/// The file has another version, was changed, or its payload is no `T`.
pub fn open<T: DeserializeOwned>(version: u32, bytes: &[u8]) -> Result<T, Damage> {
    let format = |error: serde_json::Error| Damage::Format(error.to_string());
    let Version { version: found } = serde_json::from_slice(bytes).map_err(format)?;
    if found != version {
        return Err(Damage::Version { found, reads: version });
    }
    let sealed: Sealed<'_> = serde_json::from_slice(bytes).map_err(format)?;
    let found = format!("{:08x}", crc32(sealed.payload.get().as_bytes()));
    if found != sealed.crc32 {
        return Err(Damage::Checksum {
            said: sealed.crc32,
            found,
        });
    }
    serde_json::from_str(sealed.payload.get()).map_err(format)
}
