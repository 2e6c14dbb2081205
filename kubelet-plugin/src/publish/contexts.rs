//! Measures the memory of a CUDA context on this node's GPUs: once for each driver version and GPU model, before the
//! first claim is prepared on it. The sizes are kept across restarts.
//!
//! How it fails: a measurement that fails or hangs leaves the size unknown. Limits files say so, the library then
//! reserves a default, and the next attempt is [`SCANS_BETWEEN`] scans later. Limits that were written stay as they
//! are. The driver's host memory counts toward this container's limit, so a measurement may end the plugin: the kind is
//! marked in the file meanwhile, and a start that finds the mark waits as after a failure. Without a mark nothing is
//! measured, so a file that cannot be written leaves the size unknown. The size of the software GPU's contexts is set
//! in its profile, but does not change the kind: after a change of the profile the file has to be removed.
#![forbid(unsafe_code)]

use crate::config::Config;
use crate::driver;
use crate::publish::inventory::Gpu;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use vgpu_context_size::{ANSWER_TIMEOUT, ContextSize, Kind, Sizes, ask};

/// Scans of the GPUs between two attempts: ten minutes.
const SCANS_BETWEEN: u32 = 60;

/// Measures the context of a GPU.
type Measure = Box<dyn FnMut(&Gpu) -> Result<ContextSize, String> + Send>;

/// The sizes, and how to find missing ones.
pub struct Contexts {
    sizes: Sizes,
    measure: Measure,
    /// Kinds that could not be measured, and in how many scans the next attempt is due.
    failed: Vec<(Kind, u32)>,
    /// Kinds during whose measurement an earlier start of the plugin ended. They are treated as failed from the first
    /// scan on.
    unfinished: Vec<Kind>,
    /// The flag --context-reserve gives the size, so nothing is measured.
    is_given: bool,
}

impl Contexts {
    /// Measures with the driver of this node, in a child process of this program.
    #[must_use]
    pub fn of_node(config: &Config) -> Self {
        let root = config.driver_root.clone();
        let measure = Box::new(move |gpu: &Gpu| {
            let pair = driver::find(&root).map_err(|missing| format!("--driver-root {}: {missing}", root.display()))?;
            let gpu = vgpu_context_size::Gpu {
                libcuda: pair.libcuda,
                libnvidia_ml: pair.libnvidia_ml,
                uuid: gpu.uuid.clone(),
            };
            ask(Command::new("/proc/self/exe"), &gpu, ANSWER_TIMEOUT)
        });
        Self {
            is_given: config.context_reserve != 0,
            ..Self::new(config.context_sizes.clone(), measure)
        }
    }

    fn new(path: PathBuf, measure: Measure) -> Self {
        let sizes = Sizes::read(&path);
        Self {
            unfinished: sizes.marked().to_vec(),
            sizes,
            measure,
            failed: Vec::new(),
            is_given: false,
        }
    }

    /// Finds no size: for tests of other things.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self::new(PathBuf::new(), Box::new(|_| Err("not measured".into())))
    }

    /// Returns the sizes on these GPUs by UUID, and measures those that are not known. May block for
    /// [`ANSWER_TIMEOUT`] each.
    pub fn of(&mut self, gpus: &[Gpu]) -> BTreeMap<String, ContextSize> {
        if self.is_given {
            return BTreeMap::new();
        }
        for (_, due) in &mut self.failed {
            *due = due.saturating_sub(1);
        }
        let known = gpus.iter().filter_map(|gpu| Some((gpu.uuid.clone(), self.one(gpu)?)));
        known.collect::<Vec<_>>().into_iter().collect()
    }

    fn one(&mut self, gpu: &Gpu) -> Option<ContextSize> {
        let kind = Kind {
            driver_version: gpu.driver_version.clone(),
            model: gpu.name.clone(),
        };
        if let Some(size) = self.sizes.get(&kind) {
            return Some(size);
        }
        if self.failed.iter().any(|(failed, due)| *failed == kind && *due > 0) {
            return None;
        }
        if self.unfinished.contains(&kind) {
            self.unfinished.retain(|unfinished| *unfinished != kind);
            tracing::warn!(
                gpu = gpu.uuid,
                model = gpu.name,
                "the plugin ended while it measured what a context takes, perhaps killed because the driver needs more \
                 memory than the container's limit; a default is reserved for each context, and it is measured again \
                 in ten minutes (raise the limit, plugin.resources in the chart, or set --context-reserve)"
            );
            self.failed.push((kind, SCANS_BETWEEN));
            return None;
        }
        self.failed.retain(|(failed, _)| *failed != kind);
        match self.measure_marked(gpu, &kind) {
            Ok(size) => {
                tracing::info!(
                    gpu = gpu.uuid,
                    model = gpu.name,
                    driver = gpu.driver_version,
                    bytes = size.own,
                    unowned = size.unowned,
                    "measured a context"
                );
                if let Err(error) = self.sizes.put(kind, size, true) {
                    tracing::warn!(
                        "the size of a context cannot be kept, and is measured after the next start: {error}"
                    );
                }
                Some(size)
            }
            Err(error) => {
                tracing::warn!(
                    gpu = gpu.uuid,
                    "what a context takes cannot be measured: {error}; a default is reserved for each (set --context-reserve to choose it)"
                );
                self.failed.push((kind, SCANS_BETWEEN));
                None
            }
        }
    }

    /// Measures while the kind is marked. A size that is found replaces the mark later.
    fn measure_marked(&mut self, gpu: &Gpu, kind: &Kind) -> Result<ContextSize, String> {
        let marked = self.sizes.mark(kind);
        marked.map_err(|error| format!("the file that marks a measurement cannot be written: {error}"))?;
        let measured = (self.measure)(gpu);
        if measured.is_err() {
            // A mark that stays costs a wait at the next start.
            let _ = self.sizes.unmark(kind);
        }
        measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::gpu;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    const fn size(own: u64) -> ContextSize {
        ContextSize { own, unowned: 0 }
    }

    /// Answers `answer`, and counts how often it is asked.
    fn counting(answer: Result<ContextSize, String>) -> (Arc<AtomicU32>, Measure) {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let measure = move |_: &Gpu| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer.clone()
        };
        (count, Box::new(measure))
    }

    #[test]
    fn a_kind_of_gpu_is_measured_once_also_across_restarts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts");
        for start in 0..2 {
            let (count, measure) = counting(Ok(size(518)));
            let mut contexts = Contexts::new(path.clone(), measure);
            for _ in 0..3 {
                let sizes = contexts.of(&[gpu(0), gpu(1)]);
                assert_eq!(sizes.into_values().collect::<Vec<_>>(), [size(518), size(518)]);
            }
            assert_eq!(count.load(Ordering::Relaxed), u32::from(start == 0));
        }
        let (count, measure) = counting(Ok(size(600)));
        let upgraded = Gpu {
            driver_version: "999.1".into(),
            ..gpu(0)
        };
        let sizes = Contexts::new(path, measure).of(&[upgraded, gpu(1)]);
        assert_eq!((sizes[&gpu(0).uuid], sizes[&gpu(1).uuid]), (size(600), size(518)));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_that_cannot_be_measured_stays_unknown_and_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts");
        let (count, measure) = counting(Err("no".into()));
        let mut contexts = Contexts::new(path.clone(), measure);
        for _ in 0..=SCANS_BETWEEN {
            assert!(contexts.of(&[gpu(0), gpu(1)]).is_empty());
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
        let (count, measure) = counting(Ok(size(518)));
        let sizes = Contexts::new(path, measure).of(&[gpu(0)]);
        assert_eq!((sizes.len(), count.load(Ordering::Relaxed)), (1, 1), "no mark is left");
    }

    #[test]
    fn a_measurement_that_ended_the_plugin_is_not_repeated_at_the_start_but_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("contexts");
        let dies = |_: &Gpu| -> Result<ContextSize, String> { panic!("killed") };
        let mut first = Contexts::new(path.clone(), Box::new(dies));
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.of(&[gpu(0)])));
        assert!(killed.is_err());
        // Also after a start that measures something else and is soon followed by another start.
        let other = Gpu {
            driver_version: "999.1".into(),
            ..gpu(1)
        };
        let (_, measure) = counting(Ok(size(600)));
        let sizes = Contexts::new(path.clone(), measure).of(&[gpu(0), other]);
        assert_eq!(sizes, BTreeMap::from([(gpu(1).uuid, size(600))]));

        let (count, measure) = counting(Ok(size(518)));
        let mut contexts = Contexts::new(path.clone(), measure);
        for _ in 0..SCANS_BETWEEN {
            assert!(contexts.of(&[gpu(0), gpu(2)]).is_empty());
        }
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(contexts.of(&[gpu(0), gpu(2)]).len(), 2);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let (count, measure) = counting(Ok(size(7)));
        assert_eq!(Contexts::new(path, measure).of(&[gpu(0)])[&gpu(0).uuid], size(518));
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_is_measured_where_the_size_is_given() {
        let folder = tempfile::tempdir().expect("a folder");
        let (count, measure) = counting(Ok(size(518)));
        let mut contexts = Contexts {
            is_given: true,
            ..Contexts::new(folder.path().join("contexts"), measure)
        };
        assert!(contexts.of(&[gpu(0)]).is_empty());
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_is_measured_that_cannot_be_marked() {
        let (count, measure) = counting(Ok(size(518)));
        assert!(
            Contexts::new("/nonexistent/contexts".into(), measure)
                .of(&[gpu(0)])
                .is_empty()
        );
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
