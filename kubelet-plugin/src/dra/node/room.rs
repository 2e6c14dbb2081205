//! What the refusal of a claim that finds no room says, and to whom. Pure.

use crate::dra::checkpoint::{Checkpoint, Entry};
use crate::dra::share::{ClaimId, Share, ShareKeys};
use vgpu_quantity::readable_bytes;

/// A GPU that has no room for a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device {device} has no room for {wanted}: {prepared} of {total} {what} are prepared for {}; \
     kubelet retries, and succeeds once their pods are gone{}",
    named(.holders, .reader),
    unclaimed(.holders)
)]
pub struct Full {
    pub device: String,
    pub what: &'static str,
    pub wanted: String,
    pub prepared: String,
    pub total: String,
    /// The claims with shares of the GPU. Empty if only other requests of the same claim use the GPU.
    pub holders: Vec<Holder>,
    /// Namespace of the claim that finds no room. Whoever reads events there sees the text, so it names no claim of another
    /// namespace.
    pub reader: String,
}

/// A claim with shares of the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: ClaimId,
    /// Bytes of the GPU.
    pub memory: u64,
    /// Names of its shares of the GPU.
    pub shares: Vec<String>,
    /// The claim is known to be gone, and a container has a share of it.
    pub is_unclaimed: bool,
}

// === impl Full ===

impl Full {
    /// Fits the text to a reader in namespace `reader`, and marks the holders that have no claim.
    #[must_use]
    pub fn for_reader(mut self: Box<Self>, reader: &str, unclaimed: &ShareKeys) -> Box<Self> {
        reader.clone_into(&mut self.reader);
        for holder in &mut self.holders {
            let key = |share: &String| (holder.id.uid.clone(), share.clone());
            holder.is_unclaimed = holder.shares.iter().any(|share| unclaimed.contains(&key(share)));
        }
        self
    }

    /// Returns true if the reader may read the name of this holder. A holder that was rebuilt from limits files has no name.
    #[must_use]
    pub fn may_name(&self, holder: &Holder) -> bool {
        may_name(holder, &self.reader)
    }

    /// Names all holders that the text does not name, for the log.
    #[must_use]
    pub fn not_named(&self) -> Vec<String> {
        let hidden = self.holders.iter().filter(|holder| !self.may_name(holder));
        hidden.map(|holder| holder.id.to_string()).collect()
    }
}

/// The claims with shares of a GPU.
pub(super) fn holders(checkpoint: &Checkpoint, gpu: &str) -> Vec<Holder> {
    let holder = |(uid, entry): (&String, &Entry)| {
        let on_gpu: Vec<&Share> = entry.all().filter(|share| share.gpu == gpu).collect();
        (!on_gpu.is_empty()).then(|| Holder {
            id: entry.id(uid),
            memory: on_gpu.iter().map(|share| share.memory).sum(),
            shares: on_gpu.iter().map(|share| share.name.clone()).collect(),
            is_unclaimed: false,
        })
    };
    checkpoint.claims.iter().filter_map(holder).collect()
}

fn may_name(holder: &Holder, reader: &str) -> bool {
    holder.id.namespace == reader && !holder.id.name.is_empty()
}

/// Names the claims of namespace `reader`, at most `NAMED` of them, and counts the others.
fn named(holders: &[Holder], reader: &str) -> String {
    const NAMED: usize = 3;
    let (own, others): (Vec<&Holder>, Vec<&Holder>) = holders.iter().partition(|holder| may_name(holder, reader));
    let mut all: Vec<String> = own.iter().take(NAMED).map(|holder| holder.id.to_string()).collect();
    if own.len() > NAMED {
        all.push(format!("{} more claims of this namespace", own.len() - NAMED));
    }
    match others.len() {
        0 => {}
        1 => all.push("a claim of another namespace".into()),
        more => all.push(format!("{more} claims of other namespaces")),
    }
    match all.is_empty() {
        true => "other requests of the same claim".into(),
        false => all.join(", "),
    }
}

fn unclaimed(holders: &[Holder]) -> String {
    let unclaimed: Vec<&Holder> = holders.iter().filter(|holder| holder.is_unclaimed).collect();
    match unclaimed.is_empty() {
        true => String::new(),
        false => format!("; {}", without_claim(&unclaimed, "says which")),
    }
}

/// Says how much of a GPU these holders have without a claim, and who can help. `when`: when the event exists.
pub(crate) fn without_claim(holders: &[&Holder], when: &str) -> String {
    let memory = readable_bytes(holders.iter().map(|holder| holder.memory).sum());
    let amount = match holders.iter().map(|holder| holder.shares.len()).sum() {
        1_usize => format!("a share without a claim holds {memory}"),
        more => format!("{more} shares without a claim hold {memory}"),
    };
    format!(
        "{amount} of that GPU until the pods that use them are deleted: ask the cluster's administrator, the event \
         ShareWithoutClaim on this node {when}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(namespace: &str, uid: &str) -> Holder {
        Holder {
            id: ClaimId {
                namespace: namespace.into(),
                name: format!("claim-{uid}"),
                uid: uid.into(),
            },
            memory: 10 << 30,
            shares: vec!["s".into()],
            is_unclaimed: false,
        }
    }

    fn full(holders: Vec<Holder>) -> Box<Full> {
        Box::new(Full {
            device: "gpu-1".into(),
            what: "memory",
            wanted: "30Gi".into(),
            prepared: "60Gi".into(),
            total: "80Gi".into(),
            holders,
            reader: String::new(),
        })
    }

    #[test]
    fn claims_of_other_namespaces_are_counted_and_not_named() {
        let others = ["o1", "o2"].map(|uid| holder("secret", uid));
        let own = ["a", "b", "c", "d", "e"].map(|uid| holder("d", uid));
        let nameless = Holder {
            id: ClaimId {
                uid: "n1".into(),
                ..ClaimId::default()
            },
            ..holder("", "")
        };
        let all = own.iter().chain(&others).cloned().chain([nameless]).collect();
        let full = full(all).for_reader("d", &ShareKeys::new());
        let text = full.to_string();
        for part in [
            "ResourceClaim d/claim-a (uid a), ",
            "2 more claims of this namespace, 3 claims of other namespaces; kubelet retries",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for secret in ["secret", "o1", "o2", "n1"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        assert_eq!(full.not_named().len(), 3, "the log has them");
    }

    #[test]
    fn before_the_reader_is_known_nobody_is_named() {
        assert!(
            full(vec![holder("d", "a")])
                .to_string()
                .contains("a claim of another namespace;")
        );
        assert!(
            full(Vec::new())
                .to_string()
                .contains("for other requests of the same claim;")
        );
    }

    #[test]
    fn shares_without_a_claim_are_told_to_those_who_wait_without_their_names() {
        let holders = ["o1", "o2", "o3"].map(|uid| holder("secret", uid));
        let key = |uid: &str| (uid.to_owned(), "s".to_owned());
        let gone = ShareKeys::from([key("o1"), key("o3"), ("o2".into(), "of-before".into())]);
        let text = full(holders.to_vec()).for_reader("d", &gone).to_string();
        for part in [
            "prepared for 3 claims of other namespaces",
            "2 shares without a claim hold 20Gi of that GPU",
            "ask the cluster's administrator, the event ShareWithoutClaim on this node says which",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("secret") && !text.contains("o1"), "{text}");
        let one = full(holders.to_vec()).for_reader("d", &[key("o1")].into()).to_string();
        assert!(one.contains("a share without a claim holds 10Gi"), "{one}");
    }
}
