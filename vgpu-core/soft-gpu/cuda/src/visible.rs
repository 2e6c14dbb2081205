//! CUDA_VISIBLE_DEVICES: selects and orders the GPUs. Entries are indices or (beginnings of) UUIDs. The list ends at
//! the first entry that names no GPU, and a GPU that is named twice makes it empty, as the programming guide says.
//!
//! A GPU in MIG mode is no device of CUDA; its instances are. Drivers before r570 give a process one instance and no GPU
//! beside it, later ones all.

use soft_gpu::state::State;

/// The first driver branch that gives a process several instances.
const SEVERAL_INSTANCES: u32 = 570;

/// Returns the places of the GPUs and instances that a process has.
pub(crate) fn list(state: &State, value: Option<&str>) -> Vec<usize> {
    let gpus = state.gpus();
    let whole = gpus.iter().copied().filter(|gpu| !state.mig_modes(*gpu)[0]);
    let has_compute = |place: &usize| state.instance(*place).is_some_and(|one| one.compute.is_some());
    let all = gpus.iter().flat_map(|gpu| state.instances_of(*gpu));
    let mut instances: Vec<usize> = all.filter(has_compute).collect();
    let is_alone = branch(&state.profile().driver_version) < SEVERAL_INSTANCES && !instances.is_empty();
    if is_alone && !value.is_some_and(|value| value.trim_start().starts_with("MIG-")) {
        instances.truncate(1);
    }
    // assumed: instances come after GPUs
    let devices: Vec<usize> = if is_alone {
        instances
    } else {
        whole.chain(instances).collect()
    };
    let uuids: Vec<String> = devices.iter().map(|device| state.uuid_text(*device)).collect();
    let mut chosen: Vec<usize> = choose(&uuids, value).into_iter().map(|at| devices[at]).collect();
    chosen.truncate(if is_alone { 1 } else { usize::MAX });
    chosen
}

/// The first number of a driver's version.
fn branch(version: &str) -> u32 {
    version
        .split('.')
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0)
}

fn choose(uuids: &[String], value: Option<&str>) -> Vec<usize> {
    let Some(value) = value else {
        return (0..uuids.len()).collect();
    };
    let mut gpus = Vec::new();
    for entry in value.split(',').map(str::trim) {
        let found = match entry.parse::<usize>() {
            Ok(index) => Some(index).filter(|index| *index < uuids.len()),
            Err(_) => {
                let mut matches = (0..uuids.len()).filter(|gpu| {
                    entry.len() > 4
                        && uuids[*gpu]
                            .get(..entry.len())
                            .is_some_and(|head| head.eq_ignore_ascii_case(entry))
                });
                matches.next().filter(|_| matches.next().is_none())
            }
        };
        let Some(gpu) = found else { break };
        if gpus.contains(&gpu) {
            return Vec::new();
        }
        gpus.push(gpu);
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn entries_in_order_up_to_the_first_wrong_one() {
        let uuids = ["GPU-11112222-a".to_owned(), "GPU-33334444-b".to_owned()];
        for (value, expected) in [
            (None, &[0, 1][..]),
            (Some("1,0"), &[1, 0]),
            (Some("1,7,0"), &[1]),
            (Some(""), &[]),
            (Some("-1"), &[]),
            (Some("GPU-3333"), &[1]),
            (Some("gpu-33334444-b,0"), &[1, 0]),
            (Some("GPU-"), &[]),
            (Some("0,0"), &[]),
        ] {
            assert_eq!(choose(&uuids, value), expected, "{value:?}");
        }
    }
}
