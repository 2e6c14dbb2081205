//! A fake driver for tests: pools and graphs whose sizes a test sets, events that a test reaches, contexts, and a log
//! of the calls that change something.

use super::context_life::Place;
use super::driver::{Answer, Driver, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, SUCCESS, Streams};
use super::gpu::Gpu;
use super::measure::{Nvml, Process};
use super::tables::Tables;
use crate::account::Account;
use crate::calls::Calls;
use crate::ledger::{Share, fresh};
use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};

/// The device number of the tests' GPU.
pub(super) const DEVICE: c_int = 3;
pub(super) const DEFAULT_POOL: usize = 1;
pub(super) const MIB: u64 = 1 << 20;
const CONTEXT_IS_DESTROYED: c_int = 709;

/// The sizes of one pool.
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
    /// The part of `graphs_reserved` that a trim frees.
    pub(super) graphs_unused: u64,
    pub(super) capturing: Vec<usize>,
    pub(super) freed: Vec<u64>,
    /// Pointers that the driver no longer knows.
    pub(super) gone: Vec<u64>,
    pub(super) pointer_contexts: BTreeMap<u64, usize>,
    pub(super) stream_contexts: BTreeMap<usize, usize>,
    /// Contexts that threads have pushed.
    pub(super) contexts: Vec<usize>,
    /// Contexts that have ended.
    pub(super) ended: Vec<usize>,
    /// Events by number; true: reached.
    pub(super) events: BTreeMap<usize, bool>,
    pub(super) no_events: bool,
    /// A capture of the stream begins just before an event is recorded there.
    pub(super) captures_at_record: bool,
    pub(super) captured_events: Vec<usize>,
    pub(super) capture_mode: c_int,
    pub(super) primary_active: bool,
    /// Bytes that were allocated by cuMemAlloc.
    pub(super) allocated: u64,
    /// The driver does not say whether the primary context exists.
    pub(super) primary_unknown: bool,
    pub(super) log: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Fake {
    state: Mutex<State>,
    /// The folder of the ledger, if the driver's GPU has one of its own.
    folder: Option<tempfile::TempDir>,
}

impl State {
    /// Completes all queued work.
    pub(super) fn reach_all(&mut self) {
        self.events.values_mut().for_each(|reached| *reached = true);
    }
}

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    /// The path of the ledger, if the driver's GPU has one of its own.
    pub(super) fn ledger(&self) -> std::path::PathBuf {
        let folder = self.folder.as_ref().expect("a folder");
        fresh::ledger(folder.path(), "share")
    }

    fn log(&self, call: String) -> c_int {
        self.state().log.push(call);
        SUCCESS
    }
}

/// A GPU with one share of `limit` bytes.
pub(super) fn gpu(limit: u64) -> Gpu<Fake> {
    gpu_with_host(limit, 0)
}

/// Returns a GPU with one share of `limit` bytes, and `host` bytes of host memory.
pub(super) fn gpu_with_host(limit: u64, host: u64) -> Gpu<Fake> {
    let folder = tempfile::tempdir().expect("a folder");
    let share = |name, limit| vec![fresh::share(folder.path(), name, limit)];
    let mut gpu = gpu_of(match host {
        0 => Account::new(share("share", limit)),
        _ => Account::with(share("share", limit), share("host", host)),
    });
    gpu.driver.folder = Some(folder);
    gpu
}

/// A GPU with this account.
pub(super) fn gpu_of(account: Account) -> Gpu<Fake> {
    let gpu = Gpu::new(Fake::default(), "GPU-0".into(), account, Some(0));
    gpu.driver.state().pools.insert(DEFAULT_POOL, FakePool::default());
    gpu.driver.state().current_pool = DEFAULT_POOL;
    gpu
}

/// A process with one GPU, and an NVML that shows the memory that a test sets.
pub(super) struct Scene {
    gpus: Vec<Gpu<Fake>>,
    tables: Tables<Fake>,
    calls: &'static Calls,
    pid: AtomicU32,
    nvml: Mutex<NvmlState>,
}

struct NvmlState {
    mode: Mode,
    /// The PID by which NVML lists this process, while it holds memory.
    name: u32,
    held: u64,
    /// How often the driver took memory.
    calls: u32,
}

/// How NVML lists this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By its PID.
    Own,
    /// There is no NVML.
    Missing,
    /// Not at all: only other processes are listed.
    Others,
    /// By another PID, beside another process that started at the same time.
    Crowd,
}

impl Scene {
    /// The known size of a context.
    pub(super) const RESERVE: u64 = 4 * MIB;

    pub(super) fn new(limit: u64) -> Self {
        let mut gpu = gpu(limit);
        gpu.context_reserve = Some(Self::RESERVE);
        Self {
            gpus: vec![gpu],
            tables: Tables::default(),
            calls: Box::leak(Box::default()),
            pid: AtomicU32::new(0),
            nvml: Mutex::new(NvmlState {
                mode: Mode::Own,
                name: std::process::id(),
                held: 0,
                calls: 0,
            }),
        }
    }

    pub(super) fn process(&self) -> Process<'_, Fake, &Self> {
        Process {
            gpus: &self.gpus,
            tables: &self.tables,
            calls: self.calls,
            nvml: self,
            pid: &self.pid,
        }
    }

    /// Opens the share as another process does.
    pub(super) fn neighbour(&self) -> Share {
        let folder = self.gpu().driver.folder.as_ref().expect("a folder");
        fresh::again(folder.path(), "share", self.gpu().account.device_limit())
    }

    pub(super) fn gpu(&self) -> &Gpu<Fake> {
        &self.gpus[0]
    }

    pub(super) fn place(&self) -> Place<'_, Fake> {
        Place {
            index: 0,
            gpu: self.gpu(),
        }
    }

    pub(super) fn charged(&self) -> u64 {
        self.gpu().account.charged()
    }

    fn nvml(&self) -> MutexGuard<'_, NvmlState> {
        self.nvml.lock().expect("no test panics while it holds this")
    }

    pub(super) fn held(&self) -> u64 {
        self.nvml().held
    }

    pub(super) fn takes(&self, bytes: u64) -> c_int {
        let mut nvml = self.nvml();
        nvml.held += bytes;
        nvml.calls += 1;
        SUCCESS
    }

    pub(super) fn calls_of_driver(&self) -> u32 {
        self.nvml().calls
    }

    pub(super) fn drops(&self, bytes: u64) -> c_int {
        self.nvml().held -= bytes;
        SUCCESS
    }

    pub(super) fn show(&self, mode: Mode) {
        self.nvml().mode = mode;
    }

    pub(super) fn gpu_mut(&mut self) -> &mut Gpu<Fake> {
        &mut self.gpus[0]
    }

    pub(super) fn name_as(&self, pid: u32) {
        self.nvml().name = pid;
    }
}

impl Nvml for &Scene {
    fn load(&self) {}

    fn device(&self, gpu: usize) -> Option<usize> {
        (self.nvml().mode != Mode::Missing).then_some(gpu)
    }

    fn processes(&self, _device: usize) -> Option<Vec<(u32, u64)>> {
        let nvml = self.nvml();
        let listed = match nvml.mode {
            Mode::Own => vec![nvml.name],
            Mode::Crowd => vec![0x40_0001, 0x40_0002],
            Mode::Missing | Mode::Others => Vec::new(),
        };
        let mut own = listed.into_iter().filter(|_| nvml.held > 0).map(|pid| (pid, nvml.held));
        let this = own
            .next()
            .map(|(pid, held)| (pid, held + self.gpu().driver.state().allocated));
        Some([(1, 1 << 40)].into_iter().chain(this).chain(own).collect())
    }
}

impl Streams for Fake {
    fn is_capturing(&self, stream: usize) -> Answer<bool> {
        Ok(self.state().capturing.contains(&stream))
    }

    fn synchronize(&self, stream: usize) -> c_int {
        self.log(format!("synchronize {stream}"))
    }

    fn current_context(&self) -> Answer<usize> {
        Ok(7)
    }

    fn push_context(&self, context: usize) -> c_int {
        let mut state = self.state();
        if state.ended.contains(&context) {
            return CONTEXT_IS_DESTROYED;
        }
        state.contexts.push(context);
        SUCCESS
    }

    fn pop_context(&self) {
        self.state().contexts.pop().expect("a context was pushed");
    }

    fn stream_context(&self, stream: usize) -> Answer<usize> {
        let found = self.state().stream_contexts.get(&stream).copied();
        found.ok_or(INVALID_VALUE)
    }

    fn exchange_capture_mode(&self, mode: c_int) -> c_int {
        core::mem::replace(&mut self.state().capture_mode, mode)
    }

    fn create_event(&self) -> Answer<usize> {
        let mut state = self.state();
        if state.no_events {
            return Err(OUT_OF_MEMORY);
        }
        let event = state.events.keys().last().map_or(1, |last| last + 1);
        state.events.insert(event, false);
        Ok(event)
    }

    fn record_event(&self, event: usize, stream: usize) -> c_int {
        let mut state = self.state();
        if state.captures_at_record || state.capturing.contains(&stream) {
            state.events.remove(&event);
            state.captured_events.push(event);
        }
        drop(state);
        self.log(format!("record {event} in {stream}"))
    }

    fn query_event(&self, event: usize) -> c_int {
        let state = self.state();
        match state.events.get(&event) {
            Some(true) => SUCCESS,
            Some(false) => NOT_READY,
            None if state.captured_events.contains(&event) => 907,
            None => INVALID_VALUE,
        }
    }

    fn synchronize_event(&self, event: usize) -> c_int {
        self.state().events.insert(event, true);
        SUCCESS
    }

    fn wait_for_event(&self, stream: usize, event: usize) -> c_int {
        self.log(format!("stream {stream} waits for event {event}"))
    }

    fn destroy_event(&self, event: usize) -> c_int {
        self.state().events.remove(&event);
        SUCCESS
    }

    fn create_timing_event(&self) -> Answer<usize> {
        self.create_event()
    }

    fn elapsed(&self, _from: usize, _to: usize) -> Answer<u64> {
        Ok(0)
    }
}

impl Driver for Fake {
    fn allocate(&self, bytes: u64) -> Answer<u64> {
        let mut state = self.state();
        state.allocated += bytes;
        Ok(bytes)
    }

    fn free(&self, pointer: u64) -> c_int {
        let mut state = self.state();
        state.allocated = state.allocated.saturating_sub(pointer);
        state.freed.push(pointer);
        SUCCESS
    }

    fn is_primary_active(&self, _device: c_int) -> Option<bool> {
        let state = self.state();
        (!state.primary_unknown).then_some(state.primary_active)
    }

    fn context_behind(&self, green: usize) -> Answer<usize> {
        Ok(green + 1)
    }

    fn pointer_context(&self, pointer: u64) -> Answer<usize> {
        let found = self.state().pointer_contexts.get(&pointer).copied();
        found.ok_or(INVALID_VALUE)
    }

    fn is_gone(&self, pointer: u64) -> bool {
        self.state().gone.contains(&pointer)
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
