//! Live arrays, each with its charge and its context.

use super::backing::Backing;
use super::driver::{Driver, SUCCESS};
use super::gpu::Gpu;
use crate::account::Charge;
use crate::table::Table;
use core::ffi::c_int;
use std::sync::Arc;

/// Identifies a tile of an array, as the caller encodes it.
pub type Tile = [u64; 5];

/// An array and the handle of its context. The array ends with the context.
#[derive(Debug)]
struct Array<D: 'static> {
    context: usize,
    gpu: usize,
    charge: Option<Charge>,
    /// The memory that is mapped into the array, by tile.
    tiles: Vec<(Tile, Arc<Backing<D>>)>,
}

impl<D: Driver + 'static> Array<D> {
    /// Returns the array's charge if it lies on `gpu`.
    fn bytes_on(&self, gpu: usize) -> u64 {
        self.charge
            .as_ref()
            .filter(|_| self.gpu == gpu)
            .map_or(0, Charge::bytes)
    }

    fn forget(self, gpus: &[Gpu<D>]) {
        if let (Some(gpu), Some(charge)) = (gpus.get(self.gpu), self.charge) {
            gpu.account.release(charge);
        }
    }
}

/// Live arrays by handle.
#[derive(Debug)]
pub struct Arrays<D: 'static>(Table<Array<D>>);

impl<D> Default for Arrays<D> {
    fn default() -> Self {
        Self(Table::default())
    }
}

impl<D: Driver + 'static> Arrays<D> {
    /// Adds an array that was created in `context`.
    pub fn keep(&self, gpus: &[Gpu<D>], array: usize, context: usize, gpu: usize, charge: Option<Charge>) {
        let made = Array {
            context,
            gpu,
            charge,
            tiles: Vec::new(),
        };
        self.put(gpus, array, made);
    }

    /// Adds an array in memory that is charged already.
    pub fn adopt(&self, gpus: &[Gpu<D>], array: usize, context: usize, backing: Arc<Backing<D>>) {
        let adopted = Array {
            context,
            gpu: backing.gpu,
            charge: None,
            tiles: vec![(Tile::default(), backing)],
        };
        self.put(gpus, array, adopted);
    }

    fn put(&self, gpus: &[Gpu<D>], array: usize, made: Array<D>) {
        // A driver reuses a handle only after it was destroyed: by the end of a context that we missed.
        if let Some(stale) = self.0.insert(array as u64, made) {
            stale.forget(gpus);
        }
    }

    /// Destroys an array by `destroy`. If the driver succeeds, the charge is released.
    pub fn destroy(&self, gpus: &[Gpu<D>], array: usize, destroy: impl FnOnce() -> c_int) -> c_int {
        // Remove it from the table first: once it is destroyed, the driver may give the handle to another thread.
        let known = self.0.remove(array as u64);
        let result = destroy();
        match known {
            Some(known) if result == SUCCESS => known.forget(gpus),
            Some(known) => {
                self.0.insert(array as u64, known);
            }
            None => {}
        }
        result
    }

    /// Records the memory that the driver has mapped into a tile of an array; None: it was unmapped.
    pub fn map(&self, array: usize, tile: Tile, backing: Option<Arc<Backing<D>>>) {
        self.0.with(array as u64, |array| {
            array.tiles.retain(|(known, _)| *known != tile);
            array.tiles.extend(backing.map(|backing| (tile, backing)));
        });
    }

    /// Releases the charges of the arrays that ended with `context`.
    pub fn sweep(&self, gpus: &[Gpu<D>], context: usize) {
        let gone = self.0.drain(|_, array| array.context == context);
        gone.into_iter().for_each(|array| array.forget(gpus));
    }

    /// Calls `note` with the handle and bytes of every array on `gpu`.
    pub fn settled(&self, gpu: usize, mut note: impl FnMut(u64, u64)) {
        self.0.each(|key, array| note(key, array.bytes_on(gpu)));
    }
}
