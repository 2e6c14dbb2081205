//! Finds, creates and maps the state file.
//!
//! How it fails: a new state is written to a temporary file under the folder's lock and renamed when it is complete. A
//! process that dies meanwhile leaves a `.new` file, which the next process overwrites. A reader refuses a file of the
//! wrong size or magic. A file of another version is replaced if no process has a slot in the folder.

#![allow(unsafe_code)] // mmap.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::capabilities::Files;
use crate::env::Config;
use crate::error::Error;
use crate::layout::{FREE, MAGIC, PHASE_MASK, Shared};
use crate::liveness::{Lock, Pulse, pulse};
use crate::mig_words;
use crate::profile::Profile;

/// The mapped file. It stays mapped until the process ends: other threads may be reading it.
pub(crate) struct Region {
    pub(crate) shared: &'static Shared,
    pub(crate) profile: Profile,
    /// Identifies the file: a state that was replaced meanwhile has another inode.
    pub(crate) inode: u64,
}

impl Region {
    /// Returns the folder's state. Creates it if there is none, or if another profile is requested and no process uses
    /// the old state.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let folder = |source| Error::Folder {
            origin: config.origin,
            path: config.dir.clone(),
            source,
        };
        if let Some(region) = Self::existing(config)?
            && region.suits(config)
        {
            return Ok(region);
        }
        prepare_procs(&config.dir).map_err(folder)?;
        let _lock = Lock::take(&config.dir).map_err(folder)?;
        if let Some(region) = Self::existing(config)? {
            if region.suits(config) {
                return Ok(region);
            }
            if let (true, Some((profile, _))) = (in_use(region.shared, &config.dir), &config.profile) {
                return Err(Error::InUse {
                    profile: profile.clone(),
                    state: config.dir.clone(),
                });
            }
        }
        let profile = config
            .profile
            .as_ref()
            .map_or_else(|| default_profile(&config.dir), |(_, profile)| Ok(profile.clone()));
        write_new(&config.dir, &profile.map_err(folder)?).map_err(folder)?;
        Self::existing(config)?.ok_or_else(|| Error::Damaged {
            origin: config.origin,
            path: config.dir.clone(),
        })
    }

    /// Returns the inode of the file that currently has the state's name.
    pub(crate) fn open_inode(config: &Config) -> Option<u64> {
        fs::metadata(config.dir.join("gpus")).ok().map(|meta| meta.ino())
    }

    fn suits(&self, config: &Config) -> bool {
        config
            .profile
            .as_ref()
            .is_none_or(|(_, profile)| *profile == self.profile)
    }

    fn existing(config: &Config) -> Result<Option<Self>, Error> {
        let folder = |source| Error::Folder {
            origin: config.origin,
            path: config.dir.clone(),
            source,
        };
        let damaged = || Error::Damaged {
            origin: config.origin,
            path: config.dir.clone(),
        };
        let file = match OpenOptions::new().read(true).write(true).open(config.dir.join("gpus")) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(folder(e)),
        };
        let meta = file.metadata().map_err(folder)?;
        if meta.is_file() && is_of_another_version(&file) && !is_anybody_there(&config.dir) {
            return Ok(None);
        }
        if !meta.is_file() || meta.len() != size_of::<Shared>() as u64 {
            return Err(damaged());
        }
        let shared = map(&file).map_err(folder)?;
        if shared.magic.load(Ordering::Acquire) != MAGIC {
            return Err(damaged());
        }
        let text = shared
            .profile
            .get(..shared.profile_len.load(Ordering::Acquire) as usize);
        let text = text.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let profile = text.and_then(|text| Profile::parse(text).ok()).ok_or_else(damaged)?;
        Ok(Some(Self {
            shared,
            profile,
            inode: meta.ino(),
        }))
    }
}

/// Reads the folder's own profile, for programs whose environment names none, such as those of pods.
fn default_profile(dir: &Path) -> io::Result<Profile> {
    let text = match fs::read_to_string(dir.join("profile")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    Profile::parse(&text).map_err(io::Error::other)
}

fn map(file: &File) -> io::Result<&'static Shared> {
    let (length, access) = (size_of::<Shared>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping of a file of just this length, at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: page-aligned, as long as Shared, never unmapped. Any bytes make a valid Shared: it consists of
    // integers, those that change are atomics. Profile and UUIDs never change once the file has its name.
    Ok(unsafe { &*address.cast::<Shared>() })
}

/// Returns true for a state that an older or newer release made: its magic differs in the last byte alone.
fn is_of_another_version(file: &File) -> bool {
    let (own, mut found) = (MAGIC.to_ne_bytes(), [0; 8]);
    let name = own.len() - 1;
    file.read_exact_at(&mut found, 0).is_ok() && found[..name] == own[..name] && found != own
}

/// Returns true if a process of any version has a slot in the folder. The state of another version cannot be read here,
/// so all slots are tested.
fn is_anybody_there(dir: &Path) -> bool {
    let places = fs::read_dir(dir.join("procs")).map_or(0, Iterator::count);
    (0..places).any(|place| matches!(pulse(dir, place), Pulse::Alive))
}

fn in_use(shared: &Shared, dir: &Path) -> bool {
    let places = shared.high_water.load(Ordering::Acquire) as usize;
    shared.procs.iter().take(places).enumerate().any(|(place, proc)| {
        proc.phase.load(Ordering::Acquire) & PHASE_MASK != FREE && matches!(pulse(dir, place), Pulse::Alive)
    })
}

fn prepare_procs(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir.join("procs")) {
        Ok(()) => fs::set_permissions(dir.join("procs"), fs::Permissions::from_mode(0o1777)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// Writes a new state. Only under the folder's lock.
fn write_new(dir: &Path, profile: &Profile) -> io::Result<()> {
    let text = profile.to_text();
    let aside = dir.join(format!("gpus.{}.new", std::process::id()));
    let _ = fs::remove_file(&aside);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&aside)?;
    file.set_permissions(fs::Permissions::from_mode(0o666))?;
    file.set_len(size_of::<Shared>() as u64)?; // zeros: a state that nobody uses
    file.write_all_at(&MAGIC.to_ne_bytes(), offset_of!(Shared, magic) as u64)?;
    file.write_all_at(
        &(text.len() as u32).to_ne_bytes(),
        offset_of!(Shared, profile_len) as u64,
    )?;
    file.write_all_at(text.as_bytes(), offset_of!(Shared, profile) as u64)?;
    for (gpu, uuid) in uuids(dir).into_iter().take(profile.gpus as usize).enumerate() {
        let entry = offset_of!(Shared, gpus) + gpu * size_of::<crate::layout::Gpu>();
        file.write_all_at(&uuid, (entry + offset_of!(crate::layout::Gpu, uuid)) as u64)?;
    }
    file.flush()?;
    let files = Files { dir, with_nodes: true };
    mig_words::begin(&map(&file)?.mig, &files, profile)?;
    fs::rename(&aside, dir.join("gpus"))
}

/// Returns UUIDs that depend only on the machine and the folder, so a new state has the same ones. Their first four
/// bytes differ too, because names are made of them. A container does not have the machine's `/etc/machine-id`, so a
/// file `machine-id` in the folder is preferred.
fn uuids(dir: &Path) -> Vec<[u8; 16]> {
    let files = [dir.join("machine-id"), "/etc/machine-id".into()];
    let machine = files.iter().find_map(|file| fs::read(file).ok()).unwrap_or_default();
    let seed = [machine.as_slice(), dir.as_os_str().as_encoded_bytes()].concat();
    let mut list: Vec<[u8; 16]> = Vec::new();
    let mut salt = 0u64;
    while list.len() < crate::profile::MAX_GPUS {
        let (high, low) = (mix(&seed, salt), mix(&seed, salt + 1));
        salt += 2;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&high.to_be_bytes());
        uuid[8..].copy_from_slice(&low.to_be_bytes());
        uuid[6] = uuid[6] & 0x0f | 0x40; // a version 4, variant 1 UUID by form
        uuid[8] = uuid[8] & 0x3f | 0x80;
        if list.iter().all(|other| other[..4] != uuid[..4]) {
            list.push(uuid);
        }
    }
    list
}

/// FNV-1a over the seed, then splitmix64's finish: for distribution, not for secrecy.
pub(crate) fn mix(seed: &[u8], salt: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash = seed.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn uuids_are_stable_for_a_folder_and_distinct() {
        let one = uuids(Path::new("/a"));
        assert_eq!(one, uuids(Path::new("/a")));
        let other = uuids(Path::new("/b"));
        assert!(one.iter().zip(&other).all(|(a, b)| a != b));
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn the_state_of_another_version_is_replaced_and_a_damaged_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            cgroup: None,
            caps: None,
            dir: dir.path().to_owned(),
            origin: "a test",
            profile: None,
        };
        let is_made = |magic: &[u8]| {
            fs::write(dir.path().join("gpus"), [magic, &[0; 100]].concat()).unwrap();
            Region::open(&config).is_ok_and(|region| region.shared.magic.load(Ordering::Acquire) == MAGIC)
        };
        assert!(is_made(b"SOFTGPU\x01"));
        assert!(!is_made(b"SOMEFILE"));
        assert!(!is_made(&MAGIC.to_ne_bytes()), "of this version, and cut");
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn a_machine_id_in_the_folder_tells_two_nodes_apart() {
        let dir = tempfile::tempdir().unwrap();
        let of = |id: &str| {
            fs::write(dir.path().join("machine-id"), id).unwrap();
            uuids(dir.path())
        };
        let (one, other) = (of("1"), of("2"));
        assert!(one.iter().zip(&other).all(|(a, b)| a[..4] != b[..4]));
        assert_eq!(one, of("1"));
    }
}
