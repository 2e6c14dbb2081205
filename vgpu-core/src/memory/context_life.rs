//! Creates and destroys contexts and charges their memory. Each context is charged before the driver is asked, with the
//! usual size on this GPU ([`expected`](super::expected)), and measured afterwards ([`measure`](super::measure)).
//! Destroying a context also releases the charges of the memory that was allocated in it.
//!
//! ```text
//!  create:  charge a context ─► driver ─► measure ─► count it, or undo and out of memory
//!  destroy: wait for deferred frees ─► mark its memory ─► driver ─► uncount it ─► release what was freed with it
//!           ─► measure
//! ```
//!
//! Its memory is marked before the driver is called: afterwards another thread's new allocation may have the same
//! address, and the driver would say that the old one still exists. Marked memory is released unless the driver still
//! names the context for it.
//!
//! How it fails: a call that the driver refuses changes nothing. Something else in the process may hold a primary
//! context without a call that is seen here. The driver then reports the context as active, and it and its arrays stay
//! charged, even when the last other context is destroyed. Its end is not seen either: the charge stays until the next
//! measurement, or until a context is created or ends. If the driver does not say whether a primary context exists, a
//! release does not end it and the next retain charges a new one: too much is charged, never too little. If a process
//! is killed or stopped while the driver creates a context, the context is charged already.

use super::contexts::{Contexts, Made};
use super::driver::{Driver, OUT_OF_MEMORY, SUCCESS};
use super::expected::Ahead;
use super::gpu::Gpu;
use super::measure::{Measurement, Nvml, Process};
use super::overhead::Thing;
use super::tables::Tables;
use super::{deferred, deferred_free, graphs, refusal, room, unowned};
use crate::os::spin::Entered;
use crate::os::{errno, thread};
use core::ffi::c_int;

/// A GPU of the process, and its number there.
#[derive(Debug)]
pub struct Place<'a, D> {
    pub index: usize,
    pub gpu: &'a Gpu<D>,
}

/// How a context is created and destroyed again.
pub struct Creation<N, C, M, H, U> {
    /// The driver's number of the GPU.
    pub device: c_int,
    /// The context is a green context: its handle is not valid in calls that take a context.
    pub is_green: bool,
    /// Returns false if an existing context is only retained, which needs no memory.
    pub is_new: N,
    /// Counts the context.
    pub count: C,
    /// The driver's call.
    pub make: M,
    /// Returns the handle of the new context.
    pub handle: H,
    /// Destroys the context again.
    pub undo: U,
}

/// Creates a context and charges its memory. If it does not fit, destroys it again.
pub fn begin<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    creation: Creation<
        impl FnOnce(&Contexts) -> bool,
        impl FnOnce(&mut Contexts),
        impl FnOnce() -> c_int,
        impl FnOnce() -> usize,
        impl FnOnce() -> c_int,
    >,
) -> c_int {
    let _kept = errno::keep();
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let gpu = place.gpu;
    let contexts = gpu.contexts.lock();
    end_unseen(process, place, &contexts, creation.device);
    let now = *contexts.borrow();
    let (result, fits) = if (creation.is_new)(&now) {
        let mut measurement = Measurement::of(process, gpu, place.index);
        measurement.is_green = creation.is_green;
        if !unowned::reserve(gpu, &now) {
            refusal::by_limit(gpu, gpu.unowned.each);
            return OUT_OF_MEMORY;
        }
        let handle = creation.handle;
        let thing = || Thing::Context(handle());
        let (result, fits) = measurement.take(Ahead::Context, !now.any(), creation.make, thing);
        if !fits {
            measurement.undo(creation.undo);
        }
        if !fits || result != SUCCESS {
            unowned::settle(gpu, &contexts.borrow());
        }
        (result, fits)
    } else {
        ((creation.make)(), true)
    };
    if !fits {
        return OUT_OF_MEMORY;
    }
    if result == SUCCESS {
        (creation.count)(&mut contexts.borrow_mut());
        gpu.account.note_context();
    }
    result
}

/// How a context ends.
struct Ending<E, C, S, L> {
    handle: usize,
    /// The context that the driver names for the context's memory: for a green context, the one behind it.
    home: usize,
    /// The driver's number of the GPU.
    device: c_int,
    /// The driver's call.
    end: E,
    /// Uncounts the context.
    count: C,
    /// Releases the charges of its arrays.
    sweep_arrays: S,
    /// Returns true if the driver says that the context still exists.
    lives: L,
}

/// Destroys a context and releases the charges of the memory that was freed with it. The caller holds the lock of
/// `contexts`.
fn end_of<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    contexts: &Entered<'_, Contexts>,
    ending: Ending<impl FnOnce() -> c_int, impl FnOnce(&mut Contexts), impl FnOnce(&Contexts), impl Fn() -> bool>,
) -> c_int {
    let mut measurement = Measurement::of(process, place.gpu, place.index);
    let lives = ending.lives;
    let live = &process.tables.live;
    let call = || {
        let driver = &place.gpu.driver;
        let is_own = |pointer| driver.pointer_context(pointer) == Ok(ending.home);
        live.mark_ending(place.index, is_own);
        let result = (ending.end)();
        let has_ended = result == SUCCESS && !lives();
        live.release_ended(process.gpus, place.index, |pointer| has_ended && !is_own(pointer));
        if result == SUCCESS {
            let mut now = *contexts.borrow();
            (ending.count)(&mut now);
            *contexts.borrow_mut() = now;
            unowned::settle(place.gpu, &now);
            // Must come before the second measurement, which must not count memory that was freed with the context.
            sweep(process, place);
            (ending.sweep_arrays)(&now);
            room::refresh(place.gpu);
        }
        result
    };
    let result = measurement.give_back(Some(Thing::Context(ending.handle)), call, || !lives());
    // If something else keeps the primary context alive, destroying another context does not end it.
    let is_any = contexts.borrow().any();
    if result == SUCCESS && !is_any && place.gpu.driver.is_primary_active(ending.device) == Some(false) {
        contexts.borrow_mut().is_kept = false;
        measurement.clear();
        unowned::settle(place.gpu, &contexts.borrow());
        if graphs::used() {
            forget_graphs(process, place);
        }
    }
    result
}

/// Releases the charges of a kept primary context if it has ended meanwhile. No call reports its end.
fn end_unseen<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    contexts: &Entered<'_, Contexts>,
    device: c_int,
) {
    let is_gone = || place.gpu.driver.is_primary_active(device) == Some(false);
    let (may_be_gone, primary) = {
        let contexts = contexts.borrow();
        (contexts.is_kept && contexts.retains == 0, contexts.primary)
    };
    if !may_be_gone || !is_gone() {
        return;
    }
    // Without a list from before the context's end, there is nothing to compare with.
    place.gpu.overhead.lock().borrow_mut().may_fall = true;
    let ending = Ending {
        handle: primary,
        home: primary,
        device,
        end: || SUCCESS,
        count: |contexts: &mut Contexts| contexts.is_kept = false,
        sweep_arrays: |contexts: &Contexts| process.tables.arrays.sweep(process.gpus, contexts.primary),
        lives: || false,
    };
    end_of(process, place, contexts, ending);
}

/// Releases the charges of memory that was freed with a context that the driver did not name for it, such as a pool's.
/// The driver knows which pointers still exist.
fn sweep<D: Driver, N>(process: &Process<'_, D, N>, place: &Place<'_, D>) {
    let (tables, driver) = (process.tables, &place.gpu.driver);
    let is_gone = |pointer| driver.is_gone(pointer);
    tables.live.sweep(process.gpus, place.index, is_gone);
    let buffers = &tables.buffers;
    drop(buffers.drain(|pointer, memory| memory.gpu == place.index && is_gone(pointer)));
}

/// Forgets the graphs of a GPU after its last context was destroyed: they ended with it.
fn forget_graphs<D: Driver, N>(process: &Process<'_, D, N>, place: &Place<'_, D>) {
    process.tables.graphs.drain(|_, needs| {
        needs.retain(|(gpu, _)| *gpu != place.index);
        needs.is_empty()
    });
    place.gpu.graphs.clear(&place.gpu.driver, &place.gpu.account);
}

/// Releases the primary context of `device` by `call`: one retain of it, or every retain if `all`.
pub fn release_primary<D: Driver, N: Nvml>(
    process: &Process<'_, D, N>,
    place: &Place<'_, D>,
    device: c_int,
    all: bool,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let _kept = errno::keep();
    let _outside = process.calls.outside(thread());
    process.nvml.load();
    let (gpus, tables) = (process.gpus, process.tables);
    // Locked until the release is counted: another thread may retain or release the context at the same time.
    let mut contexts = place.gpu.contexts.lock();
    loop {
        let (retains, primary) = {
            let contexts = contexts.borrow();
            (contexts.retains, contexts.primary)
        };
        if !all && retains > 1 {
            let result = call();
            let mut contexts = contexts.borrow_mut();
            contexts.retains = contexts.retains.saturating_sub(u32::from(result == SUCCESS));
            return result;
        }
        if primary == 0 || !deferred_free::has_of(gpus, primary) {
            break;
        }
        // Wait for the GPU's work without the lock. If a thread retains the context meanwhile, the check above sees it.
        drop(contexts);
        deferred_free::empty(gpus, &tables.live, primary);
        contexts = place.gpu.contexts.lock();
    }
    // Something else may hold the context; then nothing was freed. The same is assumed if the driver does not say.
    let lives = || place.gpu.driver.is_primary_active(device) != Some(false);
    let primary = contexts.borrow().primary;
    let ending = Ending {
        handle: primary,
        home: primary,
        device,
        end: call,
        count: |contexts: &mut Contexts| {
            contexts.retains = 0;
            contexts.is_kept = lives();
        },
        sweep_arrays: |contexts: &Contexts| {
            if !lives() {
                tables.arrays.sweep(gpus, contexts.primary);
            }
        },
        lives,
    };
    end_of(process, place, &contexts, ending)
}

/// Destroys a context that is not the primary one, by `end`.
pub fn destroy<D: Driver, N: Nvml>(process: &Process<'_, D, N>, context: usize, end: impl FnOnce() -> c_int) -> c_int {
    let _kept = errno::keep();
    let (gpus, tables) = (process.gpus, process.tables);
    let _outside = process.calls.outside(thread());
    // Remove it from the table first: once it is destroyed, the driver may return the same handle to another thread.
    let Some(known) = tables.contexts.remove(context as u64) else {
        return end();
    };
    let Some(gpu) = gpus.get(known.gpu) else {
        return end();
    };
    // Streams and memory of a green context belong to the context behind it.
    let behind = known.is_green.then(|| gpu.driver.context_behind(context).ok());
    let home = behind.flatten().unwrap_or(context);
    if deferred::used() {
        deferred_free::empty(gpus, &tables.live, home);
    }
    process.nvml.load();
    let place = Place { index: known.gpu, gpu };
    let ending = Ending {
        handle: context,
        home,
        device: known.device,
        end,
        count: |contexts: &mut Contexts| contexts.created = contexts.created.saturating_sub(1),
        sweep_arrays: |_: &Contexts| tables.arrays.sweep(gpus, context),
        lives: || false,
    };
    let result = end_of(process, &place, &gpu.contexts.lock(), ending);
    if result != SUCCESS {
        tables.contexts.insert(context as u64, known);
    }
    result
}

/// Counts one more user of a context that is not the primary one.
pub fn attach<D>(tables: &Tables<D>, context: usize) {
    tables.contexts.with(context as u64, |known| known.attached += 1);
}

/// Returns true if a context has users besides its creator, so that a detach does not destroy it.
pub fn is_attached<D>(tables: &Tables<D>, context: usize) -> bool {
    tables.contexts.with(context as u64, |known| known.attached > 0) == Some(true)
}

/// Ends one use of a context by `end`. The last detach destroys the context.
pub fn detach<D: Driver, N: Nvml>(process: &Process<'_, D, N>, context: usize, end: impl FnOnce() -> c_int) -> c_int {
    let _kept = errno::keep();
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

/// Records a context that is not the primary one, on the process's GPU `gpu`, the driver's `device`.
pub fn keep<D, N>(process: &Process<'_, D, N>, context: usize, gpu: usize, device: c_int, is_green: bool) {
    let made = Made {
        gpu,
        device,
        attached: 0,
        is_green,
    };
    process.tables.contexts.insert(context as u64, made);
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::expected::UNKNOWN_CONTEXT;
    use super::super::fake::{Fake, MIB, Mode, Scene};
    use super::super::free::free_charged;
    use super::super::live::Live;
    use super::*;

    const PRIMARY: usize = 7;
    const DEVICE: c_int = 3;

    /// Creates a context that takes `bytes`, with this handle.
    fn make_as(process: &Process<'_, Fake, &Scene>, handle: usize, bytes: u64) -> c_int {
        let scene = process.nvml;
        let result = begin(
            process,
            &scene.place(),
            Creation {
                device: DEVICE,
                is_green: false,
                is_new: |_: &Contexts| true,
                count: |contexts: &mut Contexts| contexts.created += 1,
                make: || scene.takes(bytes),
                handle: || handle,
                undo: || scene.drops(bytes),
            },
        );
        if result == SUCCESS {
            keep(process, handle, 0, DEVICE, false);
        }
        result
    }

    fn retain(process: &Process<'_, Fake, &Scene>, bytes: u64) -> c_int {
        let scene = process.nvml;
        let count = |contexts: &mut Contexts| (contexts.retains, contexts.primary) = (contexts.retains + 1, PRIMARY);
        begin(
            process,
            &scene.place(),
            Creation {
                device: DEVICE,
                is_green: false,
                is_new: |contexts: &Contexts| {
                    contexts.is_primary_new(|| process.gpus[0].driver.is_primary_active(DEVICE))
                },
                count,
                make: || scene.takes(bytes),
                handle: || PRIMARY,
                undo: || scene.drops(bytes),
            },
        )
    }

    #[test]
    fn a_context_is_charged_what_nvml_shows_and_its_end_releases_that() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        assert_eq!(make_as(&process, 100, 10 * MIB), SUCCESS);
        assert_eq!(scene.charged(), 10 * MIB, "not what was charged ahead");
        assert_eq!(make_as(&process, 101, 12 * MIB), SUCCESS);
        assert_eq!(scene.charged(), 22 * MIB);
        assert_eq!(make_as(&process, 102, 12 * MIB), OUT_OF_MEMORY);
        assert_eq!((scene.charged(), scene.held()), (22 * MIB, 22 * MIB));
        assert_eq!(destroy(&process, 101, || 42), 42);
        assert_eq!(scene.charged(), 22 * MIB, "the driver refused");
        assert_eq!(destroy(&process, 101, || scene.drops(12 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 10 * MIB);
        assert_eq!(destroy(&process, 100, || scene.drops(10 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 0);
    }

    #[test]
    fn where_nvml_does_not_show_this_process_each_context_stays_charged_until_its_end() {
        for mode in [Mode::Missing, Mode::Others, Mode::Crowd] {
            let scene = Scene::new(10 * MIB);
            scene.show(mode);
            let process = scene.process();
            assert_eq!(make_as(&process, 100, Scene::RESERVE), SUCCESS);
            assert_eq!(make_as(&process, 101, Scene::RESERVE), SUCCESS);
            assert_eq!(scene.charged(), 2 * Scene::RESERVE, "{mode:?}");
            assert_eq!(make_as(&process, 102, Scene::RESERVE), OUT_OF_MEMORY);
            assert_eq!(scene.calls_of_driver(), 2, "{mode:?}: the driver was not asked");
            assert_eq!(destroy(&process, 101, || scene.drops(Scene::RESERVE)), SUCCESS);
            assert_eq!(scene.charged(), Scene::RESERVE, "{mode:?}");
            assert_eq!(make_as(&process, 101, Scene::RESERVE), SUCCESS);
            assert_eq!(destroy(&process, 100, || scene.drops(Scene::RESERVE)), SUCCESS);
            assert_eq!(destroy(&process, 101, || scene.drops(Scene::RESERVE)), SUCCESS);
            assert_eq!(scene.charged(), 0);
        }
    }

    #[test]
    fn a_context_of_unknown_size_takes_a_share_of_its_own_size_at_least() {
        let mut scene = Scene::new(700 * MIB);
        scene.gpu_mut().context_reserve = None;
        scene.show(Mode::Others);
        let process = scene.process();
        assert_eq!(make_as(&process, 100, 10 * MIB), SUCCESS);
        assert_eq!(scene.charged(), UNKNOWN_CONTEXT);
        assert_eq!(
            make_as(&process, 101, 10 * MIB),
            OUT_OF_MEMORY,
            "nobody knows that it would fit"
        );
        assert_eq!(scene.calls_of_driver(), 1);
    }

    #[test]
    fn a_context_that_was_too_large_is_not_asked_for_again() {
        let scene = Scene::new(8 * MIB);
        let process = scene.process();
        assert_eq!(make_as(&process, 100, 20 * MIB), OUT_OF_MEMORY);
        assert_eq!((scene.calls_of_driver(), scene.held(), scene.charged()), (1, 0, 0));
        for _ in 0..10 {
            assert_eq!(make_as(&process, 100, 20 * MIB), OUT_OF_MEMORY);
        }
        assert_eq!(scene.calls_of_driver(), 1);
        assert_eq!(
            scene.gpu().account.context_took(),
            Some(20 * MIB),
            "nor by another process of the share"
        );
    }

    #[test]
    fn while_the_driver_creates_a_context_it_is_charged() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        let mut seen = 0;
        begin(
            &process,
            &scene.place(),
            Creation {
                device: DEVICE,
                is_green: false,
                is_new: |_: &Contexts| true,
                count: |contexts: &mut Contexts| contexts.created += 1,
                make: || {
                    seen = scene.charged();
                    scene.takes(Scene::RESERVE)
                },
                handle: || 100,
                undo: || panic!("it fits"),
            },
        );
        assert_eq!(seen, Scene::RESERVE);
    }

    #[test]
    fn a_primary_context_that_something_else_holds_stays_charged() {
        for mode in [Mode::Own, Mode::Missing] {
            let scene = Scene::new(32 * MIB);
            scene.show(mode);
            let process = scene.process();
            assert_eq!(retain(&process, Scene::RESERVE), SUCCESS);
            scene.gpu().driver.state().primary_active = true;
            let release = release_primary(&process, &scene.place(), DEVICE, false, || SUCCESS);
            assert_eq!((release, scene.charged()), (SUCCESS, Scene::RESERVE), "{mode:?}");
        }
    }

    #[test]
    fn a_kept_primary_context_stays_charged_when_the_last_other_context_ends() {
        for mode in [Mode::Own, Mode::Missing] {
            let scene = Scene::new(32 * MIB);
            scene.show(mode);
            let process = scene.process();
            assert_eq!(retain(&process, Scene::RESERVE), SUCCESS);
            assert_eq!(make_as(&process, 100, Scene::RESERVE), SUCCESS);
            scene.gpu().driver.state().primary_active = true;
            let release = release_primary(&process, &scene.place(), DEVICE, false, || SUCCESS);
            assert_eq!((release, scene.charged()), (SUCCESS, 2 * Scene::RESERVE), "{mode:?}");
            assert_eq!(destroy(&process, 100, || scene.drops(Scene::RESERVE)), SUCCESS);
            assert_eq!(scene.charged(), Scene::RESERVE, "{mode:?}: something else keeps it");
            // The end of the kept context is not seen, but the end of another context is.
            assert_eq!(make_as(&process, 101, Scene::RESERVE), SUCCESS);
            scene.gpu().driver.state().primary_active = false;
            assert_eq!(destroy(&process, 101, || scene.drops(2 * Scene::RESERVE)), SUCCESS);
            assert_eq!(scene.charged(), 0, "{mode:?}");
        }
    }

    #[test]
    fn a_kept_primary_context_is_not_charged_again_when_it_is_retained_again() {
        let scene = Scene::new(Scene::RESERVE);
        scene.show(Mode::Missing);
        let process = scene.process();
        assert_eq!(retain(&process, Scene::RESERVE), SUCCESS);
        scene.gpu().driver.state().primary_active = true;
        let release = release_primary(&process, &scene.place(), DEVICE, false, || SUCCESS);
        assert_eq!(release, SUCCESS);
        assert_eq!(retain(&process, 0), SUCCESS, "there is no room for another");
        assert_eq!(scene.charged(), Scene::RESERVE);
        scene.gpu().driver.state().primary_active = false;
        let release = release_primary(&process, &scene.place(), DEVICE, false, || scene.drops(Scene::RESERVE));
        assert_eq!((release, scene.charged()), (SUCCESS, 0));
        assert_eq!(retain(&process, Scene::RESERVE), SUCCESS, "a new one");
        assert_eq!(scene.charged(), Scene::RESERVE);
    }

    #[test]
    fn a_kept_primary_context_whose_end_was_not_seen_is_not_charged_twice() {
        for (mode, others) in [(Mode::Own, 0), (Mode::Missing, 0), (Mode::Own, 1), (Mode::Missing, 1)] {
            let fits = (others + 1) * Scene::RESERVE;
            let scene = Scene::new(fits);
            scene.show(mode);
            let process = scene.process();
            for other in 0..others {
                assert_eq!(make_as(&process, 100 + other as usize, Scene::RESERVE), SUCCESS);
            }
            assert_eq!(retain(&process, Scene::RESERVE), SUCCESS);
            scene.gpu().driver.state().primary_active = true;
            let release = release_primary(&process, &scene.place(), DEVICE, false, || SUCCESS);
            assert_eq!((release, scene.charged()), (SUCCESS, fits), "{mode:?}: it is kept");
            scene.gpu().driver.state().primary_active = false;
            scene.drops(Scene::RESERVE);
            assert_eq!(retain(&process, Scene::RESERVE), SUCCESS, "{mode:?}: a new one");
            assert_eq!(scene.charged(), fits, "{mode:?}");
        }
    }

    #[test]
    fn a_primary_context_of_which_the_driver_says_nothing_stays_charged_and_is_charged_again() {
        let scene = Scene::new(Scene::RESERVE);
        scene.show(Mode::Missing);
        let process = scene.process();
        assert_eq!(retain(&process, Scene::RESERVE), SUCCESS);
        scene.gpu().driver.state().primary_unknown = true;
        let release = release_primary(&process, &scene.place(), DEVICE, false, || SUCCESS);
        assert_eq!((release, scene.charged()), (SUCCESS, Scene::RESERVE), "it may live");
        assert_eq!(retain(&process, Scene::RESERVE), OUT_OF_MEMORY, "it may be a new one");
    }

    #[test]
    fn memory_that_went_with_a_context_is_released() {
        let scene = Scene::new(32 * MIB);
        let process = scene.process();
        assert_eq!(make_as(&process, 100, 10 * MIB), SUCCESS);
        for (pointer, goes) in [(0x1000_0000, true), (0x2000_0000, false)] {
            let charge = scene.gpu().account.reserve(4 * MIB).expect("room");
            scene.takes(4 * MIB);
            process.tables.live.keep(process.gpus, pointer, Live::new(0, charge));
            scene.gpu().driver.state().gone.extend(goes.then_some(pointer));
        }
        assert_eq!(destroy(&process, 100, || scene.drops(14 * MIB)), SUCCESS);
        assert_eq!(scene.charged(), 4 * MIB, "the other one lives");
    }

    const OWN: u64 = 0x1000_0000;
    const OTHER: u64 = 0x2000_0000;

    /// Creates context 100 of 10 MiB, with 4 MiB of memory that belong to it, and 4 that belong to the primary context.
    fn with_memory_of_two(scene: &Scene) {
        let process = scene.process();
        assert_eq!(make_as(&process, 100, 10 * MIB), SUCCESS);
        for (pointer, context) in [(OWN, 100), (OTHER, PRIMARY)] {
            allocate(scene, pointer, context);
        }
    }

    /// Allocates 4 MiB at `pointer`.
    fn allocate(scene: &Scene, pointer: u64, context: usize) {
        let process = scene.process();
        let charge = scene.gpu().account.reserve(4 * MIB).expect("room");
        scene.takes(4 * MIB);
        process.tables.live.keep(process.gpus, pointer, Live::new(0, charge));
        scene.gpu().driver.state().pointer_contexts.insert(pointer, context);
    }

    fn free(scene: &Scene, pointer: u64) -> c_int {
        let process = scene.process();
        free_charged(process.gpus, &process.tables.live, pointer, || scene.drops(4 * MIB))
    }

    #[test]
    fn memory_of_a_context_is_released_although_its_address_is_used_again_at_once() {
        let scene = Scene::new(32 * MIB);
        with_memory_of_two(&scene);
        let end = || {
            // The address is now in the middle of another thread's allocation.
            scene.gpu().driver.state().pointer_contexts.insert(OWN, PRIMARY);
            scene.drops(14 * MIB)
        };
        assert_eq!(destroy(&scene.process(), 100, end), SUCCESS);
        assert_eq!(scene.charged(), 4 * MIB, "the other context's");
        assert_eq!((free(&scene, OTHER), scene.charged()), (SUCCESS, 0));
    }

    #[test]
    fn what_another_thread_frees_and_allocates_while_a_context_ends_stays_charged() {
        for fate in [SUCCESS, 42] {
            let scene = Scene::new(32 * MIB);
            with_memory_of_two(&scene);
            let end = || {
                assert_eq!(free(&scene, OWN), SUCCESS);
                allocate(&scene, OWN, PRIMARY);
                match fate {
                    SUCCESS => scene.drops(10 * MIB),
                    refused => refused,
                }
            };
            assert_eq!(destroy(&scene.process(), 100, end), fate);
            let context = if fate == SUCCESS { 0 } else { 10 * MIB };
            assert_eq!(scene.charged(), context + 8 * MIB, "answer {fate}");
            assert_eq!([free(&scene, OWN), free(&scene, OTHER)], [SUCCESS; 2]);
            assert_eq!(scene.charged(), context, "answer {fate}");
        }
    }

    #[test]
    fn memory_for_which_the_driver_still_names_the_context_stays_charged() {
        for fate in [SUCCESS, 42] {
            let scene = Scene::new(32 * MIB);
            with_memory_of_two(&scene);
            let end = || match fate {
                SUCCESS => scene.drops(10 * MIB),
                refused => refused,
            };
            assert_eq!(destroy(&scene.process(), 100, end), fate);
            let context = if fate == SUCCESS { 0 } else { 10 * MIB };
            assert_eq!(scene.charged(), context + 8 * MIB, "answer {fate}");
            assert_eq!((free(&scene, OWN), scene.charged()), (SUCCESS, context + 4 * MIB));
        }
    }

    #[test]
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
            (scene.charged(), place.gpu.contexts.lock().borrow().any()),
            (0, false),
            "a reset ends it at once"
        );
    }

    #[test]
    fn arrays_of_a_primary_context_that_others_hold_stay_charged() {
        for (active, charged) in [(true, 14 * MIB), (false, 0)] {
            let scene = Scene::new(32 * MIB);
            let process = scene.process();
            assert_eq!(retain(&process, 10 * MIB), SUCCESS);
            let charge = scene.gpu().account.reserve(4 * MIB).expect("room");
            process.tables.arrays.keep(process.gpus, 1, PRIMARY, 0, Some(charge));
            scene.gpu().driver.state().primary_active = active;
            let end = || if active { SUCCESS } else { scene.drops(14 * MIB) };
            scene.takes(4 * MIB);
            assert_eq!(release_primary(&process, &scene.place(), DEVICE, false, end), SUCCESS);
            assert_eq!(scene.charged(), charged);
        }
    }
}
