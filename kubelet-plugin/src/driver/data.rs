//! Programs, configurations and firmware.

use super::found::{Found, Place};
use super::parts::{self, CONFIGURATIONS, PROGRAMS};
use std::path::Path;
use vgpu_find_driver::Search;

const PROGRAM_FOLDERS: [&str; 8] = [
    "usr/bin",
    "bin",
    "usr/sbin",
    "sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "opt/bin",
    "usr/local/nvidia/bin",
];
/// A folder that is in the PATH of all containers.
const CONTAINER_PROGRAM_FOLDER: &str = "/usr/bin";
/// The last is the root itself: GKE has `vulkan` there.
const CONFIGURATION_FOLDERS: [&str; 4] = ["etc", "usr/local/share", "usr/share", ""];
const FIRMWARE_FOLDERS: [&str; 3] = ["lib/firmware/updates", "lib/firmware", "usr/lib/firmware"];
/// Names of firmware files: of the GPU's system processor, and microcode.
const FIRMWARE: [&str; 2] = ["gsp", "ucodes"];

pub(super) fn programs(search: &mut Search<'_>) -> Vec<Found> {
    let program = |(name, needs): (&str, _)| {
        let file = PROGRAM_FOLDERS
            .iter()
            .find_map(|folder| search.file(Path::new(folder).join(name)))?;
        Some(Found {
            needs,
            file,
            place: Place::Program(Path::new(CONTAINER_PROGRAM_FOLDER).join(name)),
        })
    };
    PROGRAMS.into_iter().filter_map(program).collect()
}

pub(super) fn configurations(search: &mut Search<'_>) -> Vec<Found> {
    let configuration = |(name, container, needs): (&str, &str, _)| {
        let file = CONFIGURATION_FOLDERS
            .iter()
            .find_map(|folder| search.file(Path::new(folder).join(name)))?;
        Some(Found {
            needs,
            file,
            place: Place::File(Path::new(container).join(name)),
        })
    };
    CONFIGURATIONS.into_iter().filter_map(configuration).collect()
}

/// The firmware of this version, at its path on the node.
pub(super) fn firmware(search: &mut Search<'_>, version: &str) -> Vec<Found> {
    for base in FIRMWARE_FOLDERS {
        let folder = Path::new(base).join("nvidia").join(version);
        let (_, names) = search.list(&folder).unwrap_or_default();
        let wanted = |name: &String| name.ends_with(".bin") && FIRMWARE.iter().any(|start| name.starts_with(start));
        let files: Vec<Found> = names
            .into_iter()
            .filter(wanted)
            .filter_map(|name| {
                Some(Found {
                    needs: parts::ALL,
                    file: search.file(folder.join(&name))?,
                    place: Place::File(Path::new("/").join(&folder).join(name)),
                })
            })
            .collect();
        if !files.is_empty() {
            return files;
        }
    }
    Vec::new()
}
