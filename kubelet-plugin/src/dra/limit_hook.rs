//! Which hook for the driver's limit the containers of a claim get. Pure.
//!
//! | the claim | its GPU has the driver's limit | it has not |
//! |---|---|---|
//! | requires it | `set --required` | `set --required`: the container does not start, and the event says why |
//! | has a share of a GPU | `set` | none |
//! | has whole GPUs or monitors | `lift`, because a pod's limit for another claim would bind this container too | none |

use crate::dra::share::Share;
use crate::driver::Driver;
use crate::driver_limit::command;
use crate::publish::inventory::Gpu;
use std::path::Path;
use vgpu_abi::paths::DRIVER_LIMIT_FILE;
use vgpu_api::config::MemoryEnforcement;
use vgpu_cdi::{Hook, HookName};

/// Seconds. The hook ends itself within 25.
const TIMEOUT: u32 = 35;
/// The hook's flag for claims that require the limit.
const REQUIRED: &str = "--required";

/// The command of vgpu-driver-limit that a container of a claim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Set { is_required: bool },
    Lift,
}

/// The folders in a hook's arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folders<'a> {
    pub(crate) claim: &'a Path,
    pub(crate) records: &'a Path,
    /// The release of the library to which the claim is bound.
    pub(crate) library: &'a Path,
}

/// Returns the command for a claim with these shares, each with its GPU; None if its containers need no hook.
#[must_use]
pub(crate) fn command(shares: &[(&Share, &Gpu)]) -> Option<Command> {
    if shares
        .iter()
        .any(|(share, _)| share.memory_enforcement == MemoryEnforcement::Require)
    {
        return Some(Command::Set { is_required: true });
    }
    if !shares.iter().any(|(_, gpu)| gpu.has_driver_limit()) {
        return None;
    }
    Some(match shares.iter().any(|(share, gpu)| share.is_part_of(gpu)) {
        true => Command::Set { is_required: false },
        false => Command::Lift,
    })
}

/// Returns the hook that runs this command.
#[must_use]
pub(crate) fn hook<'a>(
    command: Command,
    folders: &Folders<'_>,
    driver: &Driver,
    gpus: impl IntoIterator<Item = &'a str>,
) -> Hook {
    let driver = command::Driver::of(driver);
    let arguments = match command {
        Command::Set { is_required } => driver.set(folders.claim, folders.records, is_required),
        Command::Lift => driver.lift(folders.claim, folders.records, gpus),
    };
    Hook {
        hook_name: HookName::CreateRuntime,
        path: folders.library.join(DRIVER_LIMIT_FILE).to_string_lossy().into_owned(),
        args: [DRIVER_LIMIT_FILE.to_owned()].into_iter().chain(arguments).collect(),
        timeout: TIMEOUT,
    }
}

/// Returns true if one of these argument lists, those of a CDI file's hooks, requires the limit.
#[must_use]
pub(crate) fn is_required(hooks: &[Vec<String>]) -> bool {
    let is_it = |arguments: &&Vec<String>| arguments.first().is_some_and(|name| name == DRIVER_LIMIT_FILE);
    let mut ours = hooks.iter().filter(is_it);
    ours.any(|arguments| arguments.iter().any(|argument| argument == REQUIRED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::share::Role;
    use crate::dra::share::tests::share;
    use crate::publish::inventory::tests::gpu;
    use vgpu_node::driver_limit::DriverLimit;
    use vgpu_node::gpus::MemorySource;

    #[test]
    fn a_claim_gets_the_hook_that_its_shares_and_gpus_need() {
        let limits = |answer| Gpu {
            driver_limit: answer,
            ..gpu(0)
        };
        let [able, unable, unknown] =
            [Some(DriverLimit::Misc), Some(DriverLimit::None("old".into())), None].map(limits);
        let lowered = Gpu {
            memory_source: MemorySource::Lowered,
            ..able.clone()
        };
        let part = share("s1");
        let whole = Share {
            memory: gpu(0).memory,
            ..share("s2")
        };
        let monitor = Share {
            role: Role::Monitor,
            memory: 0,
            ..share("m")
        };
        let requiring = Share {
            memory_enforcement: MemoryEnforcement::Require,
            ..share("s3")
        };
        let set = |is_required| Some(Command::Set { is_required });
        for (shares, expected) in [
            (vec![(&part, &able)], set(false)),
            (vec![(&part, &unable)], None),
            (vec![(&part, &unknown)], None),
            (vec![(&whole, &able)], Some(Command::Lift)),
            // The system keeps the rest of the GPU, so all that is for shares is a part of it.
            (vec![(&whole, &lowered)], set(false)),
            (vec![(&monitor, &able)], Some(Command::Lift)),
            (vec![(&monitor, &unable), (&whole, &unable)], None),
            (vec![(&whole, &able), (&part, &able)], set(false)),
            (vec![(&part, &unable), (&part, &able)], set(false)),
            (vec![(&requiring, &unable)], set(true)),
            (vec![(&part, &able), (&requiring, &able)], set(true)),
        ] {
            assert_eq!(command(&shares), expected, "{shares:?}");
        }
    }
}
