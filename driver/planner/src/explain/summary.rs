//! Sums up the reasons of many nodes: by request, kind of reason, and what is short.
//!
//! ```text
//!  Why of a node ─► add ─► Section: one request ─► Group: reasons of a kind, how many devices, the closest one
//! ```
//!
//! Devices of other classes are counted apart, because most devices of a node are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use vgpu_allocator::{Fitting, Largest, Reason, ReasonKind, Shortage, Why};
use vgpu_api::capacity;
use vgpu_quantity::Quantity;

/// The limit of groups of one request: without one, each device's own taint text would make a group.
const MOST_GROUPS: usize = 32;

/// How many instances of a profile are named by their places.
const MOST_PLACES: usize = 3;

/// Why claims fit on none of the nodes that were added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pub sections: Vec<Section>,
    /// The largest fractions that would fit.
    pub largest: Largest,
}

/// Why one request, or one alternative of it, does not fit together with the earlier ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Index of the claim in the question.
    pub claim: usize,
    pub request: String,
    pub groups: Vec<Group>,
    /// The number of reasons beyond [`MOST_GROUPS`].
    pub others: usize,
    /// Devices of other classes, and the reason of one of them.
    pub of_other_classes: usize,
    pub other_class: Option<Reason>,
    /// Nodes without any slice.
    pub nodes_without: usize,
    /// The number of devices that fit one at a time, if several are wanted.
    pub fitting: usize,
    /// The node with the most such devices.
    pub best: Option<Fitting>,
    /// The most devices on one node that the request could get if none were in use.
    pub most_on_node: usize,
    /// Instances of GPUs in MIG mode, by profile, as far as the reasons name them.
    pub instances: BTreeMap<String, Instances>,
}

/// The instances of one profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Instances {
    /// The number that the selectors of the request do not match.
    pub unmatched: usize,
    /// Those that are in use, or have too little left.
    pub taken: usize,
    /// Those that have a taint, or are out of reach for another reason.
    pub other: usize,
    /// The places of some that the selectors match.
    pub places: Vec<String>,
}

impl Instances {
    fn add(&mut self, reason: &Reason, placement: &str) {
        let count = match reason.reason {
            ReasonKind::Selector => &mut self.unmatched,
            ReasonKind::InUse | ReasonKind::Capacity | ReasonKind::Counter => &mut self.taken,
            _ => &mut self.other,
        };
        *count += 1;
        if reason.reason != ReasonKind::Selector && self.places.len() < MOST_PLACES {
            let place = format!("{} {placement}", reason.node);
            self.places.push(place.trim_end().to_owned());
        }
    }
}

/// Something that a request asks for and no device in the cluster offers, even when unused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beyond<'a> {
    /// The largest device that its selectors match.
    Capacity(&'a Shortage),
    /// The most devices that one node has.
    Count(usize),
}

/// Reasons that differ only in their device or node, and in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub kind: ReasonKind,
    /// What the reasons have in common.
    about: String,
    pub devices: usize,
    /// Reasons about a whole node.
    pub nodes: usize,
    /// Devices that are too small even when unused. `largest` is the largest of them.
    pub too_small: usize,
    pub largest: Option<Shortage>,
    /// One of the reasons. If they are about capacity, the one about the device with the most left.
    pub closest: Reason,
}

impl Summary {
    /// Adds the reasons of another node.
    pub fn add(&mut self, why: Why) {
        let mut without = None;
        let mut usable: BTreeMap<usize, usize> = BTreeMap::new();
        for reason in why.reasons {
            let section = self.section(reason.claim, &reason.request);
            *usable.entry(section).or_default() += usize::from(is_usable(&reason));
            if reason.reason == ReasonKind::NodeMismatch && reason.device.is_empty() {
                without = Some(section);
            } else {
                self.sections[section].add(reason);
            }
        }
        if let Some(section) = without {
            self.sections[section].nodes_without += 1;
        }
        for fitting in why.fitting {
            let section = self.section(fitting.claim, &fitting.request);
            *usable.entry(section).or_default() += fitting.count;
            self.sections[section].add_fitting(fitting);
        }
        for (section, count) in usable {
            let most = &mut self.sections[section].most_on_node;
            *most = count.max(*most);
        }
        self.largest.merge(why.largest);
    }

    /// Returns true if every node has the same reason, so no other node need be asked: the class does not exist.
    pub fn is_of_every_node(&self) -> bool {
        let mut groups = self.sections.iter().flat_map(|section| &section.groups);
        groups.any(|group| group.kind == ReasonKind::UnknownClass)
    }

    /// Returns true if the search ended at the same request on every node with devices. Then the reasons of all devices
    /// are known for that request.
    pub fn is_of_one_request(&self) -> bool {
        let about = self.sections.iter().filter(|section| section.is_about_devices());
        let mut requests = about.map(|section| (section.claim, section.request.split('/').next()));
        let first = requests.next();
        requests.all(|other| Some(other) == first)
    }

    /// Finds or adds the section of a request, and returns its index.
    fn section(&mut self, claim: usize, request: &str) -> usize {
        let known = self.sections.iter();
        let mut known = known.map(|section| section.claim == claim && section.request == request);
        // From the end: reasons come grouped by request, and by node.
        match known.rposition(|known| known) {
            Some(at) => at,
            None => {
                self.sections.push(Section {
                    claim,
                    request: request.to_owned(),
                    groups: Vec::new(),
                    others: 0,
                    of_other_classes: 0,
                    other_class: None,
                    nodes_without: 0,
                    fitting: 0,
                    best: None,
                    most_on_node: 0,
                    instances: BTreeMap::new(),
                });
                self.sections.len() - 1
            }
        }
    }
}

impl Section {
    /// The number of devices of the requested class.
    pub fn devices(&self) -> usize {
        self.fitting + self.others + self.groups.iter().map(|group| group.devices).sum::<usize>()
    }

    /// Returns true if some node has a device of the class.
    pub fn is_about_devices(&self) -> bool {
        self.fitting > 0 || !self.groups.is_empty()
    }

    /// Returns true if a selector of the request rules out every device of its class, whatever is free. If a selector
    /// fails, the search ends and other devices are not known, so this returns false.
    pub fn is_unmatched(&self) -> bool {
        let rules_out = |group: &Group| group.kind == ReasonKind::Selector;
        let mut with_devices = self.groups.iter().filter(|group| group.devices > 0).peekable();
        with_devices.peek().is_some() && with_devices.all(rules_out) && self.fitting == 0 && self.others == 0
    }

    /// Returns the capacity that is too small on every device, or the number of devices that is too small on every
    /// node, even if none are in use. `wanted` is the requested number of devices.
    pub fn beyond(&self, wanted: i64) -> Option<Beyond<'_>> {
        if let Some(short) = self.too_small() {
            return Some(Beyond::Capacity(short));
        }
        // Nodes with an incomplete pool, or with a selector that fails, may have more devices.
        let is_known = |group: &Group| !matches!(group.kind, ReasonKind::IncompletePool | ReasonKind::CelError);
        let is_less = i64::try_from(self.most_on_node).is_ok_and(|most| most < wanted);
        let is_beyond = wanted > 1 && self.most_on_node > 0 && self.others == 0 && is_less;
        (is_beyond && self.groups.iter().all(is_known)).then_some(Beyond::Count(self.most_on_node))
    }

    /// Returns the capacity that is too small on every device of the class even when unused, from the largest device
    /// that the selectors match. The size of a tainted device, one in use or one in an incomplete pool is not known.
    fn too_small(&self) -> Option<&Shortage> {
        let is_too_small = |group: &Group| match group.kind {
            ReasonKind::Selector => true,
            ReasonKind::IncompletePool => false,
            _ => group.too_small == group.devices,
        };
        let is_all = self.fitting == 0 && self.others == 0 && self.groups.iter().all(is_too_small);
        let shorts = self.groups.iter().filter_map(|group| group.largest.as_ref());
        let largest = shorts.fold(None, |known, short| match is_larger(short, known) {
            true => Some(short),
            false => known,
        });
        largest.filter(|_| is_all)
    }

    /// The groups, with the most devices first.
    pub fn by_size(&self) -> Vec<&Group> {
        let mut groups: Vec<&Group> = self.groups.iter().collect();
        groups.sort_by_key(|group| Reverse(group.devices + group.nodes));
        groups
    }

    fn add(&mut self, reason: Reason) {
        if reason.is_of_another_class() {
            self.of_other_classes += 1;
            self.other_class.get_or_insert(reason);
            return;
        }
        if let Some(instance) = &reason.instance
            && (self.instances.len() < MOST_GROUPS || self.instances.contains_key(&instance.profile))
        {
            let of_profile = self.instances.entry(instance.profile.clone()).or_default();
            of_profile.add(&reason, &instance.placement);
        }
        let about = about(&reason);
        let known = self.groups.iter_mut();
        let mut known = known.filter(|group| group.kind == reason.reason && group.about == about);
        if let Some(group) = known.next() {
            group.add(reason);
        } else if self.groups.len() < MOST_GROUPS {
            let mut group = Group {
                kind: reason.reason,
                about,
                devices: 0,
                nodes: 0,
                too_small: 0,
                largest: None,
                closest: reason.clone(),
            };
            group.add(reason);
            self.groups.push(group);
        } else {
            self.others += 1;
        }
    }

    fn add_fitting(&mut self, fitting: Fitting) {
        self.fitting += fitting.count;
        let missing = |fitting: &Fitting| fitting.wanted.saturating_sub_unsigned(fitting.count as u64);
        if self.best.as_ref().is_none_or(|best| missing(&fitting) < missing(best)) {
            self.best = Some(fitting);
        }
    }
}

impl Group {
    fn add(&mut self, reason: Reason) {
        if let Some(short) = reason.shortages.iter().find(|short| short.wanted > short.total) {
            self.too_small += 1;
            if is_larger(short, self.largest.as_ref()) {
                self.largest = Some(short.clone());
            }
        }
        match reason.device.is_empty() {
            true => self.nodes += 1,
            false => self.devices += 1,
        }
        if closeness(&reason) > closeness(&self.closest) {
            self.closest = reason;
        }
    }
}

/// Returns true if the device, when unused, would satisfy the request.
fn is_usable(reason: &Reason) -> bool {
    let is_short = |short: &Shortage| short.wanted > short.total;
    let is_excluded = matches!(reason.reason, ReasonKind::Selector | ReasonKind::NodeMismatch);
    !reason.device.is_empty() && !is_excluded && !reason.shortages.iter().any(is_short)
}

/// Returns true if the device of `short` has more in total. Different capacities cannot be compared.
fn is_larger(short: &Shortage, known: Option<&Shortage>) -> bool {
    known.is_none_or(|known| known.name == short.name && known.total < short.total)
}

/// What two reasons of the same kind must have in common to belong to one group.
fn about(reason: &Reason) -> String {
    match reason.reason {
        ReasonKind::Capacity if !reason.shortages.is_empty() => {
            let names: Vec<&str> = reason.shortages.iter().map(|short| &*short.name).collect();
            names.join(", ")
        }
        ReasonKind::Capacity | ReasonKind::Taint | ReasonKind::Selector => reason.message.clone(),
        // Distinguishes devices in use by others from those used by these claims.
        ReasonKind::InUse => reason.field.clone(),
        _ => String::new(),
    }
}

/// How close a device comes to the request: by the memory left, then the cores, then the rest.
fn closeness(reason: &Reason) -> Option<(i128, i128, i128)> {
    let left = |wanted: &dyn Fn(&str) -> bool| {
        let short = reason.shortages.iter().filter(|short| wanted(&short.name));
        short
            .map(|short| Quantity::rank(&short.free))
            .min()
            .unwrap_or(i128::MAX)
    };
    let is = |name: &str, known: &str| name.rsplit('/').next() == Some(known);
    let (memory, cores) = (
        |name: &str| is(name, capacity::MEMORY),
        |name: &str| is(name, capacity::CORES),
    );
    let rest = |name: &str| !memory(name) && !cores(name);
    (!reason.shortages.is_empty()).then(|| (left(&memory), left(&cores), left(&rest)))
}

#[cfg(test)]
mod tests {
    use vgpu_allocator::Shortage;

    use super::*;

    fn reason(kind: ReasonKind, device: &str, message: &str) -> Reason {
        Reason {
            claim: 0,
            request: "r".into(),
            node: "n".into(),
            pool: "p".into(),
            device: device.into(),
            instance: None,
            reason: kind,
            field: "spec.devices.requests[0].exactly".into(),
            message: message.into(),
            shortages: Vec::new(),
            holders: Vec::new(),
            together: Vec::new(),
        }
    }

    fn short(device: &str, free: &[(&str, &str)]) -> Reason {
        let shortages = free.iter().map(|(name, free)| Shortage {
            name: (*name).into(),
            wanted: "10".parse().unwrap(),
            free: free.parse().unwrap(),
            total: "20".parse().unwrap(),
        });
        Reason {
            shortages: shortages.collect(),
            ..reason(ReasonKind::Capacity, device, device)
        }
    }

    fn summary(reasons: Vec<Reason>) -> Summary {
        let mut summary = Summary::default();
        for reason in reasons {
            summary.add(Why {
                reasons: vec![reason],
                ..Why::default()
            });
        }
        summary
    }

    #[test]
    fn reasons_are_added_up_by_what_is_short_and_the_closest_device_is_kept() {
        let summary = summary(vec![
            short("a", &[("memory", "2")]),
            short("b", &[("memory", "3"), ("cores", "1")]),
            short("c", &[("memory", "4")]),
            short("d", &[("memory", "3")]),
            reason(ReasonKind::Taint, "e", "taint x"),
            reason(ReasonKind::Taint, "f", "taint y"),
            reason(ReasonKind::Taint, "g", "taint y"),
        ]);
        let [section] = &summary.sections[..] else {
            panic!("one request");
        };
        let groups: Vec<_> = section
            .by_size()
            .iter()
            .map(|group| (group.kind, group.devices, group.closest.device.clone()))
            .collect();
        assert_eq!(
            groups,
            [
                (ReasonKind::Capacity, 3, "c".to_owned()),
                (ReasonKind::Taint, 2, "f".to_owned()),
                (ReasonKind::Capacity, 1, "b".to_owned()),
                (ReasonKind::Taint, 1, "e".to_owned()),
            ]
        );
        assert_eq!(section.devices(), 7);
    }

    #[test]
    fn other_classes_and_nodes_without_devices_are_counted_apart() {
        let mut other = reason(ReasonKind::Selector, "nic", "the selector of class gpu does not match");
        other.field = "spec.selectors[0].cel.expression".into();
        let nothing = reason(ReasonKind::NodeMismatch, "", "no slice is for this node");
        let summary = summary(vec![other.clone(), other, nothing.clone(), nothing]);
        let section = &summary.sections[0];
        assert_eq!(
            (section.devices(), section.of_other_classes, section.nodes_without),
            (0, 2, 2)
        );
        assert!(section.groups.is_empty());
    }

    #[test]
    fn others_texts_cannot_make_it_grow_for_ever() {
        let taint = |at| reason(ReasonKind::Taint, "d", &format!("taint {at}"));
        let summary = summary((0..1000).map(taint).collect());
        let section = &summary.sections[0];
        assert_eq!((section.groups.len(), section.devices()), (MOST_GROUPS, 1000));
    }
}
