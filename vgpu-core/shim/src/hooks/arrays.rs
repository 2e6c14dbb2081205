//! Arrays: charged by their elements, each array in granules of its own. A height or depth of 0 means 1.
//!
//! A driver need not know a handle that it did not give, so what is left after a context's end cannot
//! be asked, as it is for pointers: each array is kept with the context in which it was made.
//!
//! Arrays whose memory comes later (sparse, or of deferred mapping) are charged nothing: what is mapped
//! into them is physical memory, which [`vmm`](super::vmm) charges and which they hold on to.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::memory::charge;
use crate::hooks::shapes::Solid;
use crate::hooks::vmm::Backing;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint};
use std::sync::Arc;
use vgpu_core::account::Charge;

/// Where something is mapped into an array, as the caller says it.
pub(crate) type Tile = [u64; 5];

/// An array, and the handle of the context with which it goes.
#[derive(Debug)]
pub(crate) struct Array {
    context: usize,
    gpu: usize,
    charge: Option<Charge>,
    /// What is mapped into it, and where.
    tiles: Vec<(Tile, Arc<Backing>)>,
}

impl Array {
    /// What it is charged, if it lies on `gpu`.
    pub(crate) fn bytes_on(&self, gpu: usize) -> u64 {
        self.charge
            .as_ref()
            .filter(|_| self.gpu == gpu)
            .map_or(0, Charge::bytes)
    }

    fn forget(self, ready: &Ready) {
        if let (Some(gpu), Some(charge)) = (ready.gpus.get(self.gpu), self.charge) {
            gpu.account.release(charge);
        }
    }
}

/// Charges what `shape` takes and keeps it with the handle.
///
/// # Safety
/// `array` is null or may be written.
unsafe fn make(
    ready: &'static Ready,
    array: *mut usize,
    shape: Option<Solid>,
    levels: c_uint,
    allocate: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(shape), Some(gpu), false) = (shape, ready.current(), array.is_null()) else {
        return allocate();
    };
    let (Some(bytes), Some(owner)) = (shape.bytes(levels), ready.gpus.get(gpu)) else {
        return OUT_OF_MEMORY;
    };
    let charge = if bytes > 0 {
        let Some(charge) = charge(owner, bytes) else {
            return OUT_OF_MEMORY;
        };
        Some(charge)
    } else {
        None
    };
    let result = allocate();
    let made = Array {
        context: current(),
        gpu,
        charge,
        tiles: Vec::new(),
    };
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        let stale = ready.arrays.insert(unsafe { *array } as u64, made);
        // A driver gives a handle again only after it was destroyed: by a context's end that we missed.
        if let Some(stale) = stale {
            stale.forget(ready);
        }
    } else {
        made.forget(ready);
    }
    result
}

/// The calling thread's context; 0: none.
fn current() -> usize {
    let mut context = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(cuCtxGetCurrent(*mut usize))(&mut context) };
    if result == SUCCESS { context } else { 0 }
}

/// Gives back the arrays that went with `context`.
pub(crate) fn sweep(ready: &Ready, context: usize) {
    let gone = ready.arrays.drain(|_, array| array.context == context);
    gone.into_iter().for_each(|array| array.forget(ready));
}

type Create<D> = unsafe extern "C" fn(*mut usize, *const D) -> c_int;

/// cuArrayCreate and cuArray3DCreate, of either width.
pub(crate) unsafe fn create<D: Copy + Into<Solid>>(
    ready: &'static Ready,
    real: Create<D>,
    array: *mut usize,
    descriptor: *const D,
) -> c_int {
    // SAFETY: null, or the caller's.
    let shape = unsafe { descriptor.as_ref() }.map(|shape| (*shape).into());
    // SAFETY: passed on.
    unsafe { make(ready, array, shape, 1, || real(array, descriptor)) }
}

pub(crate) unsafe fn create_mipmapped(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Solid, c_uint) -> c_int,
    array: *mut usize,
    descriptor: *const Solid,
    levels: c_uint,
) -> c_int {
    // SAFETY: null, or the caller's; passed on.
    unsafe {
        make(ready, array, descriptor.as_ref().copied(), levels, || {
            real(array, descriptor, levels)
        })
    }
}

pub(crate) unsafe fn destroy(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, array: usize) -> c_int {
    // Out of the table first: once destroyed, the driver may give the handle to another thread.
    let known = ready.arrays.remove(array as u64);
    // SAFETY: passed on.
    let result = unsafe { real(array) };
    match known {
        Some(known) if result == SUCCESS => known.forget(ready),
        Some(known) => {
            ready.arrays.insert(array as u64, known);
        }
        None => {}
    }
    result
}

/// Notes what a call maps into arrays and takes out of them; the driver has done it.
pub(crate) fn mapped(ready: &Ready, array: usize, tile: Tile, backing: Option<Arc<Backing>>) {
    ready.arrays.with(array as u64, |array| {
        array.tiles.retain(|(known, _)| *known != tile);
        array.tiles.extend(backing.map(|backing| (tile, backing)));
    });
}

/// An array in memory that is charged already.
pub(crate) fn adopt(ready: &Ready, array: usize, backing: Arc<Backing>) {
    let adopted = Array {
        context: current(),
        gpu: backing.gpu,
        charge: None,
        tiles: vec![(Tile::default(), backing)],
    };
    if let Some(stale) = ready.arrays.insert(array as u64, adopted) {
        stale.forget(ready);
    }
}
