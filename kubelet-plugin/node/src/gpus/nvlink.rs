//! Which GPUs reach each other over NVLink: the islands, each with a name. Pure.
//!
//! ```text
//!  a fabric's cluster and clique ─► its name, the same on all nodes of the fabric
//!  links to GPUs and switches ────► islands: GPUs that are joined, directly or through others ─► the first one's UUID
//! ```
//!
//! How it fails:
//! - A GPU says that it is linked to another one, which says nothing of it: neither gets a name, and a sentence says why.
//! - The links of a GPU cannot be read: it has none. A GPU that is linked to it gets that sentence.
//! - A GPU is lost: the others keep their island. Its name may change, because it is that of the first GPU that is left.

use std::collections::{BTreeMap, BTreeSet};

/// What the driver says of one GPU's NVLinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) fabric: Option<Fabric>,
    /// The PCI addresses of the GPUs and switches that active links lead to, as the kernel writes them.
    pub(super) peers: BTreeSet<String>,
    /// True if a link is active whose other end has no address.
    pub(super) has_nameless: bool,
}

/// The fabric that a GPU has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fabric {
    /// All zero within one machine.
    pub(super) cluster: [u8; 16],
    pub(super) clique: u32,
}

/// A GPU: its UUID, its PCI address if that is known, and its links.
pub(super) type Linked<'a> = (&'a str, Option<&'a str>, &'a Links);

/// The names of the islands by GPU, and what contradicts itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Islands {
    /// By UUID. GPUs without NVLink are missing.
    pub(super) names: BTreeMap<String, String>,
    /// A sentence for each two GPUs that do not agree.
    pub(super) contradictions: Vec<String>,
}

// === impl Fabric ===

impl Fabric {
    /// Its name as GPU Feature Discovery labels nodes: `<UUID>.<clique>`. None: it ends at this machine.
    fn name(&self) -> Option<String> {
        if self.cluster == [0; 16] {
            return None;
        }
        let hex: String = self.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Some(format!("{}.{}", parts.join("-"), self.clique))
    }
}

// === impl Islands ===

impl Islands {
    pub(super) fn of(gpus: &[Linked<'_>]) -> Self {
        let at = |address: &str| gpus.iter().position(|(_, own, _)| *own == Some(address));
        let leads_to =
            |one: usize, other: usize| gpus[other].1.is_some_and(|address| gpus[one].2.peers.contains(address));
        let mut found = Self::default();
        let mut disagreeing = BTreeSet::new();
        for (one, (uuid, _, links)) in gpus.iter().enumerate() {
            for other in links.peers.iter().filter_map(|peer| at(peer)) {
                if other != one && !leads_to(other, one) {
                    disagreeing.extend([one, other]);
                    found.contradictions.push(format!(
                        "GPU {uuid} says that it has an NVLink to GPU {}, which says nothing of it: neither gets the attribute \
                         nvlinkClique; look at nvidia-smi nvlink --status and nvidia-smi topo -m on the node",
                        gpus[other].0
                    ));
                }
            }
        }
        // Each GPU begins as an island of its own; two that have something in common become one.
        let mut island: Vec<usize> = (0..gpus.len()).collect();
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let agreeing = |index: &usize| !disagreeing.contains(index);
        for one in (0..gpus.len()).filter(agreeing) {
            let (_, own, links) = gpus[one];
            let ends = links.peers.iter().cloned().chain(own.map(str::to_owned));
            // A switch may have no PCI address. GPUs of one clique of this machine then count as joined.
            let of_machine = links
                .fabric
                .as_ref()
                .filter(|fabric| links.has_nameless && fabric.name().is_none());
            let ends: Vec<String> = ends
                .chain(of_machine.map(|fabric| format!("clique {}", fabric.clique)))
                .collect();
            for end in ends
                .into_iter()
                .filter(|end| at(end).is_none_or(|index| agreeing(&index)))
            {
                let joined = island[*first.entry(end).or_insert(one)];
                let own = island[one];
                island.iter_mut().filter(|of| **of == own).for_each(|of| *of = joined);
            }
        }
        for index in (0..gpus.len()).filter(agreeing) {
            let members = (0..gpus.len()).filter(|other| island[*other] == island[index]);
            let members: Vec<&str> = members.map(|other| gpus[other].0).collect();
            let of_island = members
                .iter()
                .min()
                .filter(|_| members.len() > 1)
                .map(|uuid| (*uuid).to_owned());
            let fabric = gpus[index].2.fabric.as_ref().and_then(Fabric::name);
            if let Some(name) = fabric.or(of_island) {
                found.names.insert(gpus[index].0.to_owned(), name);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn links(peers: &[&str]) -> Links {
        Links {
            peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
            ..Links::default()
        }
    }

    /// GPUs `GPU-0`, `GPU-1`, ... at the addresses `0`, `1`, ... with these links.
    fn islands(all: &[Links]) -> Islands {
        let names: Vec<(String, String)> = (0..all.len()).map(|at| (format!("GPU-{at}"), at.to_string())).collect();
        let gpus: Vec<Linked<'_>> = names
            .iter()
            .zip(all)
            .map(|((uuid, address), links)| (uuid.as_str(), Some(address.as_str()), links))
            .collect();
        Islands::of(&gpus)
    }

    /// The name of each GPU's island; empty if it has none.
    fn names(all: &[Links]) -> Vec<String> {
        let found = islands(all);
        assert_eq!(found.contradictions, [""; 0]);
        let of = |at| found.names.get(&format!("GPU-{at}")).cloned().unwrap_or_default();
        (0..all.len()).map(of).collect()
    }

    #[test]
    fn switches_and_links_make_islands() {
        let (one, other) = (links(&["s0", "s1"]), links(&["s2"]));
        let all = [&one, &one, &other, &other].map(Clone::clone);
        assert_eq!(names(&all), ["GPU-0", "GPU-0", "GPU-2", "GPU-2"]);
        let pairs = [links(&["1"]), links(&["0"]), links(&["3"]), links(&["2"])];
        assert_eq!(names(&pairs), ["GPU-0", "GPU-0", "GPU-2", "GPU-2"]);
        let chain = [links(&["2"]), links(&["2"]), links(&["0", "1"]), links(&[])];
        assert_eq!(names(&chain), ["GPU-0", "GPU-0", "GPU-0", ""], "through another one");
        assert_eq!(names(&[links(&[]), links(&[])]), ["", ""], "PCI Express alone");
        assert_eq!(
            names(&[links(&["s0"]), links(&[])]),
            ["", ""],
            "an island of one is none"
        );
    }

    #[test]
    fn a_fabric_names_its_cliques_on_every_node() {
        let of = |cluster, clique| Links {
            fabric: Some(Fabric { cluster, clique }),
            has_nameless: true,
            ..Links::default()
        };
        let cluster = [1; 16];
        let name = "01010101-0101-0101-0101-010101010101";
        assert_eq!(
            names(&[of(cluster, 3), of(cluster, 4), links(&[])]),
            [format!("{name}.3"), format!("{name}.4"), String::new()],
            "also of a single GPU"
        );
        // Within a machine a clique joins those whose switch has no address.
        let machine = [of([0; 16], 1), of([0; 16], 2), of([0; 16], 1)];
        assert_eq!(names(&machine), ["GPU-0", "", "GPU-0"]);
    }

    #[test]
    fn two_that_disagree_have_no_name_and_others_keep_theirs() {
        let all = [links(&["1", "s"]), links(&["s"]), links(&["s"]), links(&["s"])];
        let found = islands(&all);
        let [said] = &found.contradictions[..] else {
            panic!("{:?}", found.contradictions);
        };
        assert!(
            said.starts_with("GPU GPU-0 says that it has an NVLink to GPU GPU-1, which"),
            "{said}"
        );
        let expected = ["GPU-2", "GPU-3"].map(|uuid| (uuid.to_owned(), "GPU-2".to_owned()));
        assert_eq!(found.names, expected.into());
    }

    proptest! {
        /// Whatever the links say, two GPUs with a name in common are joined by links that both know.
        #[test]
        fn islands_are_what_links_join(ends in prop::collection::vec(prop::collection::btree_set(0_usize..12, 0..4), 0..8)) {
            let all: Vec<Links> = ends
                .iter()
                .map(|peers| Links { peers: peers.iter().map(usize::to_string).collect(), ..Links::default() })
                .collect();
            let found = islands(&all);
            let is_link = |one: usize, other: usize| ends[one].contains(&other) && ends[other].contains(&one);
            let named = |at: usize| found.names.get(&format!("GPU-{at}"));
            let disagrees = |one: usize| {
                (0..ends.len()).any(|other| other != one && ends[one].contains(&other) != ends[other].contains(&one))
            };
            for one in 0..ends.len() {
                prop_assert!(!(disagrees(one) && named(one).is_some()));
                for other in 0..ends.len() {
                    let both = one != other && !disagrees(one) && !disagrees(other);
                    let by_switch = ends[one].intersection(&ends[other]).any(|end| *end >= ends.len());
                    if both && (is_link(one, other) || by_switch) {
                        prop_assert!(named(one).is_some() && named(one) == named(other));
                    }
                }
            }
        }
    }
}
