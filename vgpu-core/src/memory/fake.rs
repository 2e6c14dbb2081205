//! A driver of the tests' own: pools and graphs whose sizes a test sets, and a log of the calls that change something.

use super::driver::{Answer, Driver, INVALID_VALUE, SUCCESS};
use super::gpu::Gpu;
use crate::account::Account;
use crate::ledger::fresh;
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The device that the tests' GPU is, and its default pool.
pub(super) const DEVICE: c_int = 3;
pub(super) const DEFAULT_POOL: usize = 1;
pub(super) const MIB: u64 = 1 << 20;

/// What one pool has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FakePool {
    pub(super) reserved: u64,
    pub(super) used: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pools: BTreeMap<usize, FakePool>,
    pub(super) current_pool: usize,
    pub(super) graphs_reserved: u64,
    /// Of that, what is given back when it is trimmed.
    pub(super) graphs_unused: u64,
    pub(super) capturing: Vec<usize>,
    pub(super) freed: Vec<u64>,
    pub(super) log: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Fake(Mutex<State>);

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds this")
    }

    fn log(&self, call: String) -> c_int {
        self.state().log.push(call);
        SUCCESS
    }
}

/// A GPU with one share of `limit` bytes, whose ledger lies in `folder`.
pub(super) fn gpu(folder: &tempfile::TempDir, limit: u64) -> Gpu<Fake> {
    let account = Account::new(vec![fresh::share(folder.path(), "share", limit)]);
    let gpu = Gpu::new(Fake::default(), "GPU-0".into(), account, 0);
    gpu.driver.state().pools.insert(DEFAULT_POOL, FakePool::default());
    gpu.driver.state().current_pool = DEFAULT_POOL;
    gpu
}

impl Driver for Fake {
    fn free(&self, pointer: u64) -> c_int {
        self.state().freed.push(pointer);
        SUCCESS
    }

    fn is_capturing(&self, stream: usize) -> Answer<bool> {
        Ok(self.state().capturing.contains(&stream))
    }

    fn synchronize(&self, stream: usize) -> c_int {
        self.log(format!("synchronize {stream}"))
    }

    fn current_context(&self) -> Answer<usize> {
        Ok(7)
    }

    fn pool_reserved(&self, pool: usize) -> Answer<u64> {
        let found = self.state().pools.get(&pool).copied();
        found.map(|pool| pool.reserved).ok_or(INVALID_VALUE)
    }

    fn pool_used(&self, pool: usize) -> Answer<u64> {
        let found = self.state().pools.get(&pool).copied();
        found.map(|pool| pool.used).ok_or(INVALID_VALUE)
    }

    fn pool_keep_nothing(&self, pool: usize) -> c_int {
        self.log(format!("keep nothing in {pool}"))
    }

    fn trim_pool(&self, pool: usize) -> c_int {
        match self.state().pools.get_mut(&pool) {
            Some(pool) => {
                pool.reserved = pool.used;
                SUCCESS
            }
            None => INVALID_VALUE,
        }
    }

    fn destroy_pool(&self, pool: usize) -> c_int {
        self.state().pools.remove(&pool);
        self.log(format!("destroy {pool}"))
    }

    fn default_pool(&self, device: c_int) -> Answer<usize> {
        if device == DEVICE {
            Ok(DEFAULT_POOL)
        } else {
            Err(INVALID_VALUE)
        }
    }

    fn current_pool(&self, _device: c_int) -> Answer<usize> {
        Ok(self.state().current_pool)
    }

    fn set_current_pool(&self, _device: c_int, pool: usize) -> c_int {
        self.state().current_pool = pool;
        SUCCESS
    }

    fn graphs_reserved(&self, _device: c_int) -> Answer<u64> {
        Ok(self.state().graphs_reserved)
    }

    fn trim_graphs(&self, _device: c_int) -> c_int {
        let mut state = self.state();
        state.graphs_reserved -= core::mem::take(&mut state.graphs_unused);
        SUCCESS
    }
}
