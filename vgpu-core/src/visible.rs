//! Parses CUDA_VISIBLE_DEVICES as CUDA does: which GPUs are visible, and in which order.
//!
//! Entries are indices, UUIDs, or unique prefixes of UUIDs. The list ends at the first entry that names no GPU; if a
//! GPU is named twice, the list is empty.
#![forbid(unsafe_code)]

/// Returns the indices in `uuids` of the GPUs that `value` makes visible.
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
    named(uuids.iter().copied().map(Some), entry)
}

/// Returns the index of the only GPU whose UUID is `name` or begins with it. None in `uuids`: a GPU without a name.
pub fn named<'a>(uuids: impl Iterator<Item = Option<&'a str>>, name: &str) -> Option<usize> {
    let is_named = |uuid: &str| {
        let head = uuid.get(..name.len());
        name.len() > "GPU-".len() && head.is_some_and(|head| head.eq_ignore_ascii_case(name))
    };
    let mut named = uuids.enumerate().filter(|(_, uuid)| uuid.is_some_and(is_named));
    let (place, _) = named.next()?;
    named.next().is_none().then_some(place)
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
        assert_eq!(choose(&["MIG-aaaa-x", "MIG-bbbb-y"], "mig-b,MIG-aaaa"), [1, 0]);
        assert!(names_instances("0, MIG-1234") && !names_instances("GPU-c"));
    }
}
