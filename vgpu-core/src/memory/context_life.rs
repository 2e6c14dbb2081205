//! Creates and destroys contexts with their memory charged. The memory of each context is measured
//! ([`measure`](super::measure)); the first one of a process on a GPU is charged the share's reserve before. Destroying
//! a context also releases the charges of the memory that was allocated in it.
//!
//! ```text
//!  create:  charge the reserve (first context) ─► driver ─► measure ─► count it, or undo and out of memory
//!  destroy: wait for deferred frees ─► driver ─► uncount it ─► release what was freed with it ─► measure
//! ```
//!
//! How it fails: a call that the driver refuses changes nothing. Something else in the process may hold a primary
//! context without a call that is seen here. The driver then reports the context as active, and its arrays stay
//! charged.

use super::contexts::{Contexts, Made};
use super::driver::{Driver, OUT_OF_MEMORY, SUCCESS};
use super::gpu::Gpu;
use super::measure::{Change, Measurement, Nvml, Process};
use super::tables::Tables;
use super::{deferred, deferred_free, graphs, room};
use crate::os::thread;
use core::ffi::c_int;

/// A GPU of the process, and its number there.
#[derive(Debug)]
pub struct Place<'a, D> {
    pub index: usize,
    pub gpu: &'a Gpu<D>,
}

/// Creates a context through `make` and charges its memory. `count` counts the context; `undo` destroys it again if it
/// does not fit. It is measured only if `is_new`: retaining an existing context needs no memory.
pub fn begin<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    is_new: impl FnOnce(&Contexts) -> bool,
    count: impl FnOnce(&mut Contexts),
    make: impl FnOnce() -> c_int,
    undo: impl FnOnce(),
) -> c_int {
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let gpu = place.gpu;
    let mut contexts = gpu.contexts.lock();
    let (result, fits) = if is_new(&contexts) {
        let first = (!contexts.any()).then_some(gpu.context_reserve);
        let mut measurement = Measurement::of(process, gpu, place.index);
        let (result, fits) = measurement.around(first, Change::Takes, make);
        if !fits {
            measurement.around(None, Change::GivesBack, || {
                undo();
                SUCCESS
            });
        }
        (result, fits)
    } else {
        (make(), true)
    };
    if !fits {
        return OUT_OF_MEMORY;
    }
    if result == SUCCESS {
        count(&mut contexts);
        gpu.account.note_context();
    }
    result
}

/// Destroys a context through `end` and releases the charges of what was freed with it. `count` uncounts the context.
/// The caller holds the lock of `contexts`.
fn end_of<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    contexts: &mut Contexts,
    end: impl FnOnce() -> c_int,
    count: impl FnOnce(&mut Contexts),
    sweep_arrays: impl FnOnce(&Contexts),
) -> c_int {
    let mut measurement = Measurement::of(process, place.gpu, place.index);
    let (result, _) = measurement.around(None, Change::GivesBack, || {
        let result = end();
        if result == SUCCESS {
            count(contexts);
            // Before the second measurement, because memory that was freed with the context must not be charged there.
            sweep(process, place);
            sweep_arrays(contexts);
            room::refresh(place.gpu);
        }
        result
    });
    if result == SUCCESS && !contexts.any() {
        measurement.clear();
        if graphs::used() {
            forget_graphs(process, place);
        }
    }
    result
}

/// Releases the charges of memory that was freed with a context. The driver tells which pointers still exist.
fn sweep<D: Driver, N>(process: &Process<'_, D, N>, place: &Place<'_, D>) {
    let (tables, driver) = (process.tables, &place.gpu.driver);
    let is_gone = |pointer| driver.is_gone(pointer);
    tables.live.sweep(process.gpus, place.index, is_gone);
    let buffers = &tables.buffers;
    drop(buffers.drain(|pointer, memory| memory.gpu == place.index && is_gone(pointer)));
}

/// Forgets the graphs of a GPU after its last context was destroyed, and with it all graphs that need it.
fn forget_graphs<D: Driver, N>(process: &Process<'_, D, N>, place: &Place<'_, D>) {
    process.tables.graphs.drain(|_, needs| {
        needs.retain(|(gpu, _)| *gpu != place.index);
        needs.is_empty()
    });
    place.gpu.graphs.clear(&place.gpu.driver, &place.gpu.account);
}

/// Releases the primary context of `device` through `call`: one retain of it, or `all`.
pub fn release_primary<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    device: c_int,
    all: bool,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let (gpus, tables) = (process.gpus, process.tables);
    // Locked until the release is counted: another thread may retain or release the context at the same time.
    let mut contexts = place.gpu.contexts.lock();
    loop {
        if !all && contexts.retains > 1 {
            let result = call();
            contexts.retains -= u32::from(result == SUCCESS);
            return result;
        }
        let primary = contexts.primary;
        if primary == 0 || !deferred_free::has_of(gpus, primary) {
            break;
        }
        // Wait for the GPU's work without the lock. If a thread retains the context meanwhile, the check above sees it.
        drop(contexts);
        deferred_free::empty(gpus, &tables.live, primary);
        contexts = place.gpu.contexts.lock();
    }
    end_of(
        process,
        place,
        &mut contexts,
        call,
        |contexts| contexts.retains = 0,
        |contexts| {
            // Something else may hold the context unseen; then nothing was freed.
            if !place.gpu.driver.is_primary_active(device) {
                tables.arrays.sweep(gpus, contexts.primary);
            }
        },
    )
}

/// Destroys a context that is not the primary one, through `end`.
pub fn destroy<D: Driver, N: Nvml>(process: &Process<'_, D, N>, context: usize, end: impl FnOnce() -> c_int) -> c_int {
    let (gpus, tables) = (process.gpus, process.tables);
    let _outside = process.calls.outside(thread());
    // Remove it from the table first: once it is destroyed, the driver may return the same handle to another thread.
    let Some(known) = tables.contexts.remove(context as u64) else {
        return end();
    };
    let Some(gpu) = gpus.get(known.gpu) else {
        return end();
    };
    if deferred::used() {
        // Streams of a green context belong to the one behind it.
        let behind = known.is_green.then(|| gpu.driver.context_behind(context).ok());
        deferred_free::empty(gpus, &tables.live, behind.flatten().unwrap_or(context));
    }
    process.nvml.load();
    let place = Place { index: known.gpu, gpu };
    let result = end_of(
        process,
        &place,
        &mut gpu.contexts.lock(),
        end,
        |contexts| contexts.created = contexts.created.saturating_sub(1),
        |_| tables.arrays.sweep(gpus, context),
    );
    if result != SUCCESS {
        tables.contexts.insert(context as u64, known);
    }
    result
}

/// Counts one more user of a context that is not the primary one.
pub fn attach<D>(tables: &Tables<D>, context: usize) {
    tables.contexts.with(context as u64, |known| known.attached += 1);
}

/// Ends one use of a context through `end`. The last detach destroys the context.
pub fn detach<D: Driver, N: Nvml>(process: &Process<'_, D, N>, context: usize, end: impl FnOnce() -> c_int) -> c_int {
    let others = process.tables.contexts.with(context as u64, |known| {
        let others = known.attached > 0;
        known.attached -= u32::from(others);
        others
    });
    if others != Some(true) {
        return destroy(process, context, end);
    }
    let result = end();
    if result != SUCCESS {
        attach(process.tables, context);
    }
    result
}

/// Records a context that is not the primary one.
pub fn keep<D, N>(process: &Process<'_, D, N>, context: usize, gpu: usize, is_green: bool) {
    let made = Made {
        gpu,
        attached: 0,
        is_green,
    };
    process.tables.contexts.insert(context as u64, made);
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, MIB, Scene};
    use super::super::live::Live;
    use super::*;

    const PRIMARY: usize = 7;
    const DEVICE: c_int = 3;

    /// Creates a context for which NVML reports `bytes`.
    fn make(process: &Process<'_, Fake, &Scene>, bytes: u64) -> c_int {
        let scene = process.nvml;
        begin(
            process,
            &scene.place(),
            |_| true,
            |contexts| contexts.created += 1,
            || scene.takes(bytes),
            || scene.gives_back(bytes),
        )
    }

    fn retain(process: &Process<'_, Fake, &Scene>, bytes: u64) -> c_int {
        let scene = process.nvml;
        let count = |contexts: &mut Contexts| (contexts.retains, contexts.primary) = (contexts.retains + 1, PRIMARY);
        let is_new = |contexts: &Contexts| contexts.retains == 0;
        begin(
            process,
            &scene.place(),
            is_new,
            count,
            || scene.takes(bytes),
            || scene.gives_back(bytes),
        )
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_context_is_charged_what_nvml_shows_and_its_end_releases_that() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        assert_eq!(make(&process, 10 * MIB), SUCCESS);
        keep(&process, 100, 0, false);
        assert_eq!(scene.charged(), 10 * MIB, "not the reserve");
        assert_eq!(make(&process, 12 * MIB), SUCCESS);
        keep(&process, 101, 0, false);
        assert_eq!(scene.charged(), 22 * MIB);
        assert_eq!(make(&process, 12 * MIB), OUT_OF_MEMORY);
        assert_eq!((scene.charged(), scene.held()), (22 * MIB, 22 * MIB), "it was undone");
        assert_eq!(destroy(&process, 101, || 42), 42);
        assert_eq!(scene.charged(), 22 * MIB, "the driver refused");
        assert_eq!(destroy(&process, 101, || scene.drops(12 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 10 * MIB);
        assert_eq!(destroy(&process, 100, || scene.drops(10 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn without_nvml_the_first_context_is_charged_the_reserve_until_the_last_is_gone() {
        let scene = Scene::new(32 * MIB);
        scene.hide_nvml();
        let process = scene.process();
        for context in [100, 101] {
            assert_eq!(make(&process, 10 * MIB), SUCCESS);
            keep(&process, context, 0, false);
            assert_eq!(scene.charged(), Scene::RESERVE);
        }
        assert_eq!(destroy(&process, 100, || SUCCESS), SUCCESS);
        assert_eq!(scene.charged(), Scene::RESERVE);
        assert_eq!(destroy(&process, 101, || SUCCESS), SUCCESS);
        assert_eq!(scene.charged(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn memory_that_went_with_a_context_is_released() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        assert_eq!(make(&process, 10 * MIB), SUCCESS);
        keep(&process, 100, 0, false);
        for (pointer, goes) in [(0x1000_0000, true), (0x2000_0000, false)] {
            let charge = scene.gpu().account.reserve(4 * MIB).expect("room");
            scene.takes(4 * MIB);
            process.tables.live.keep(process.gpus, pointer, Live::new(0, charge));
            scene.gpu().driver.state().gone.extend(goes.then_some(pointer));
        }
        assert_eq!(destroy(&process, 100, || scene.drops(14 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 4 * MIB, "the other one lives");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_primary_context_is_measured_at_its_first_retain_and_its_last_release() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        assert_eq!(retain(&process, 10 * MIB), SUCCESS);
        assert_eq!(retain(&process, 0), SUCCESS);
        let (place, scene) = (scene.place(), &scene);
        let release = |bytes| move || scene.drops(bytes);
        assert_eq!(release_primary(&process, &place, DEVICE, false, release(0)), SUCCESS);
        assert_eq!(scene.charged(), 10 * MIB);
        assert_eq!(
            release_primary(&process, &place, DEVICE, false, release(10 * MIB)),
            SUCCESS
        );
        assert_eq!(scene.charged(), 0);
        assert_eq!(retain(&process, 10 * MIB), SUCCESS);
        assert_eq!(retain(&process, 0), SUCCESS);
        assert_eq!(
            release_primary(&process, &place, DEVICE, true, release(10 * MIB)),
            SUCCESS
        );
        assert_eq!(
            (scene.charged(), place.gpu.contexts.lock().any()),
            (0, false),
            "a reset ends it at once"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn arrays_of_a_primary_context_that_others_hold_stay_charged() {
        for (active, charged) in [(true, 4 * MIB), (false, 0)] {
            let scene = Scene::new(32 * MIB);
            let process = scene.process();
            assert_eq!(retain(&process, 10 * MIB), SUCCESS);
            let charge = scene.gpu().account.reserve(4 * MIB).expect("room");
            process.tables.arrays.keep(process.gpus, 1, PRIMARY, 0, Some(charge));
            scene.gpu().driver.state().primary_active = active;
            let end = || scene.drops(10 * MIB);
            assert_eq!(release_primary(&process, &scene.place(), DEVICE, false, end), SUCCESS);
            assert_eq!(scene.charged(), charged);
        }
    }
}
