//! Everything in this process that is charged or keeps a charge, by its handle or address.

use super::allocations::Allocations;
use super::arrays::Arrays;
use super::backing::{Backing, Bindings, Mappings};
use super::contexts::Made;
use super::graphs::Needs;
use super::libraries::Libraries;
use super::refcounts::Refcounts;
use crate::table::Table;
use std::sync::Arc;

#[derive(Debug)]
pub struct Tables<D: 'static> {
    /// Live allocations by pointer, and the granules that small ones share.
    pub live: Allocations,
    pub arrays: Arrays<D>,
    /// Physical memory by handle, and its mappings by address.
    pub vmm_handles: Refcounts<Backing<D>>,
    pub vmm_maps: Mappings<D>,
    /// Mappings of memory that other processes made, by address.
    pub imports: Refcounts<Backing<D>>,
    /// External memory by handle, and the buffers that are mapped of it.
    pub externals: Table<Arc<Backing<D>>>,
    pub buffers: Table<Arc<Backing<D>>>,
    /// Bindings of logical endpoints, by their numbers.
    pub endpoints: Table<Bindings<D>>,
    /// Contexts made with cuCtxCreate, by handle.
    pub contexts: Table<Made>,
    /// Executable graphs that allocate, by handle, with the memory that they need.
    pub graphs: Table<Needs>,
    /// Libraries that wait for a context.
    pub libraries: Libraries,
}

impl<D> Default for Tables<D> {
    fn default() -> Self {
        Self {
            live: Allocations::default(),
            arrays: Arrays::default(),
            vmm_handles: Table::default(),
            vmm_maps: Table::default(),
            imports: Table::default(),
            externals: Table::default(),
            buffers: Table::default(),
            endpoints: Table::default(),
            contexts: Table::default(),
            graphs: Table::default(),
            libraries: Libraries::default(),
        }
    }
}
