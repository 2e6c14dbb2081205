//! Places for the shares of a new claim: a slot for each, if they fit beside those that are prepared.

use super::lock::Locked;
use super::room::{self, Full};
use super::{Error, Node};
use crate::checkpoint::{Checkpoint, Entry, Held};
use crate::claim;
use crate::share::{ClaimId, Role, Share, ShareKeys};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeSet;

/// Why a claim has no room.
#[derive(Debug)]
pub struct NoRoom {
    pub full: Box<Full>,
    /// It would have room without the claims that are gone.
    pub without_gone: bool,
}

// === impl Node ===

impl Node {
    /// Returns why a claim has no room now. `gone`: UIDs of prepared claims that will be unprepared soon. None: it has
    /// room, or cannot be prepared for another reason.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn no_room(
        &mut self,
        locked: &Locked,
        id: &ClaimId,
        claim: &ResourceClaim,
        gone: &BTreeSet<String>,
    ) -> Result<Option<NoRoom>, Error> {
        drop(self.begin_turn(locked)?);
        let full = |gone: &dyn Fn(&String) -> bool| {
            let inventory = self.inventory.as_ref().ok()?;
            let shares = claim::shares(claim, &self.config.pool(), inventory).ok()?;
            let claims = self.checkpoint.claims.iter();
            let others = claims.filter(|(uid, _)| **uid != id.uid && !gone(uid));
            let others = Checkpoint {
                claims: others.map(|(uid, entry)| (uid.clone(), entry.clone())).collect(),
                ..Checkpoint::default()
            };
            match self.held(id, &others, &shares) {
                Err(Error::Full(full)) => Some(full),
                _ => None,
            }
        };
        Ok(full(&|_| false).map(|found| NoRoom {
            full: found,
            without_gone: full(&|uid| gone.contains(uid)).is_none(),
        }))
    }

    /// Returns an entry with a slot for each share, if all shares fit beside the prepared ones.
    pub(super) fn admit(&mut self, id: &ClaimId, shares: &[Share]) -> Result<Entry, Error> {
        let library = self.library.ensure().map_err(Error::Library)?.to_owned();
        Ok(Entry {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            library,
            shares: self.held(id, &self.checkpoint, shares)?,
            pods: Vec::new(),
        })
    }

    /// Returns a slot for each share of claim `id` that is not a monitor's, if all fit beside those of `prepared`.
    fn held(&self, id: &ClaimId, prepared: &Checkpoint, shares: &[Share]) -> Result<Vec<Held>, Error> {
        let nobody = ShareKeys::new();
        let unclaimed = self.unclaimed.as_ref().unwrap_or(&nobody);
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let mut all = Vec::new();
        for share in shares {
            let slot = match share.role {
                Role::Monitor => None,
                Role::Share => {
                    let gpu = inventory
                        .gpu(&share.gpu)
                        .ok_or_else(|| Error::GpuGone(share.gpu.clone()))?;
                    if let Some(ailment) = inventory.ailment(&gpu.uuid) {
                        return Err(Error::Ailing {
                            device: share.device.clone(),
                            why: ailment.text(&gpu.uuid),
                        });
                    }
                    let slot = room::slot(prepared, &all, gpu, share, self.config.shares);
                    Some(slot.map_err(|full| full.told_to(&id.namespace, unclaimed))?)
                }
            };
            all.push(Held {
                share: share.clone(),
                slot,
            });
        }
        Ok(all)
    }
}
