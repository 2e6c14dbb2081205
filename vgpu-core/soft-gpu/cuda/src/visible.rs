//! CUDA_VISIBLE_DEVICES: selects and orders the GPUs. Entries are indices or (beginnings of) UUIDs. The list ends at
//! the first entry that names no GPU, and a GPU that is named twice makes it empty, as the programming guide says.

use soft_gpu::state::State;

pub(crate) fn list(state: &State, value: Option<&str>) -> Vec<usize> {
    let uuids: Vec<String> = (0..state.profile().gpus as usize)
        .map(|gpu| state.uuid_text(gpu))
        .collect();
    choose(&uuids, value)
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
