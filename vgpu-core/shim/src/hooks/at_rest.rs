//! What the driver holds for sure, while some thread is in a call that does not end: all that is charged and lies
//! in a table.
//!
//! ```text
//!  charged ─► driver ─► in its table ─► taken out ─► driver ─► given back
//!  \_ under way ____/  \__ at rest __/  \____ under way ____________/
//! ```
//!
//! Asked for rarely, so it is counted then. What only a binding or a tile keeps, and what stays charged because it
//! was exported, is left out: who asks wants to know what may be under way, and may take too much for it.

use crate::hooks::vmm::Backing;
use crate::hooks::{granules, graphs, pools};
use crate::state::{Gpu, Ready};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of device memory on `gpu`; contexts and code apart.
#[cold]
pub(crate) fn bytes(ready: &Ready, gpu: &Gpu) -> u64 {
    let Some(index) = ready.gpus.iter().position(|one| core::ptr::eq(one, gpu)) else {
        return 0;
    };
    let mut backings = BTreeMap::new();
    let mut note = |backing: &Arc<Backing>| {
        if backing.gpu == index {
            backings.insert(Arc::as_ptr(backing) as usize, backing.own_bytes());
        }
        false
    };
    ready.vmm_handles.drain(|_, (backing, _)| note(backing));
    ready.vmm_maps.drain(|_, (backing, _)| note(backing));
    ready.imports.drain(|_, (backing, _)| note(backing));
    ready.externals.drain(|_, backing| note(backing));
    ready.buffers.drain(|_, backing| note(backing));
    let mut arrays = 0;
    ready.arrays.drain(|_, array| {
        arrays += array.bytes_on(index);
        false
    });
    let parts = [
        granules::at_rest(ready, index),
        arrays,
        pools::reserved(gpu),
        graphs::reserved(gpu),
    ];
    parts
        .into_iter()
        .chain(backings.into_values())
        .fold(0, u64::saturating_add)
}
