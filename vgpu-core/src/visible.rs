//! CUDA_VISIBLE_DEVICES as CUDA reads it: which GPUs, in which order.
//!
//! Entries are indices or UUIDs, or as much of the beginning of one as tells it apart. The list ends
//! at the first entry that names no GPU; a GPU named twice makes it empty.
#![forbid(unsafe_code)]

/// The places in `uuids` of the GPUs that `value` shows.
#[must_use]
pub fn choose(uuids: &[&str], value: &str) -> Vec<usize> {
    let mut chosen = Vec::new();
    for entry in value.split(',') {
        let Some(place) = find(uuids, entry.trim()) else {
            break;
        };
        if chosen.contains(&place) {
            return Vec::new();
        }
        chosen.push(place);
    }
    chosen
}

fn find(uuids: &[&str], entry: &str) -> Option<usize> {
    if let Ok(index) = entry.parse::<usize>() {
        return Some(index).filter(|index| *index < uuids.len());
    }
    let is_named = |uuid: &str| {
        let head = uuid.get(..entry.len());
        entry.len() > "GPU-".len() && head.is_some_and(|head| head.eq_ignore_ascii_case(entry))
    };
    let mut named = (0..uuids.len()).filter(|place| is_named(uuids[*place]));
    named.next().filter(|_| named.next().is_none())
}

/// Returns true if `value` names instances of a partitioned GPU, which only the driver can choose.
#[must_use]
pub fn names_instances(value: &str) -> bool {
    value.split(',').any(|entry| entry.trim().starts_with("MIG"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_in_order_up_to_the_first_that_names_none() {
        let uuids = ["GPU-aaaa1111-x", "GPU-aaaa2222-y", "GPU-cccc3333-z"];
        for (value, expected) in [
            ("0", &[0][..]),
            ("2,0", &[2, 0]),
            (" 1 , 2", &[1, 2]),
            ("1,3,0", &[1]),
            ("-1", &[]),
            ("", &[]),
            ("NoDevFiles", &[]),
            ("GPU-c", &[2]),
            ("gpu-aaaa2222-y,0", &[1, 0]),
            ("GPU-aaaa", &[]),
            ("GPU-", &[]),
            ("GPU-cccc3333-z-and-more", &[]),
            ("0,0", &[]),
            ("0,GPU-aaaa1", &[]),
        ] {
            assert_eq!(choose(&uuids, value), expected, "{value:?}");
        }
        assert!(names_instances("0, MIG-1234") && !names_instances("GPU-c"));
    }
}
