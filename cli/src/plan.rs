//! Decides the next step of a run from the request, the GPUs and the share that it joins. Pure.
//!
//! GPUs are listed only if the decision needs them (for a new share, or if a GPU is named while joining),
//! because a real driver is slow. So the decision may be to list the GPUs first.
#![forbid(unsafe_code)]

use crate::arbitration;
use crate::driver::Driver;
use crate::gpus::Gpu;
use crate::request::{GpuChoice, Request, word};
use vgpu_abi::arbitration::SLOTS;
use vgpu_abi::limits::{ComputePolicy, Limits};
use vgpu_api::request::CORES_MAX;
use vgpu_quantity::format_bytes;

/// Name of a share that no other command can join.
pub const OWN_SHARE: &str = "run";

/// The next step of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    Create(Box<Limits>),
    Join,
    /// List the GPUs and decide again.
    AskGpus,
}

/// A share that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    pub limits: Limits,
    pub soft_gpu: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("--gpu {wanted}: this machine has no such GPU; it has {}", list(.gpus))]
    NoGpu { wanted: GpuChoice, gpus: Vec<Gpu> },
    #[error(
        "--gpu {gpu}: this GPU is in MIG mode, so it cannot be shared as a whole; name one of its instances: {}",
        list(.instances)
    )]
    Divided { gpu: u32, instances: Vec<Gpu> },
    #[error("--memory {}: {} has only {}; ask for at most that", format_bytes(*.wanted), name(.gpu), format_bytes(.gpu.memory))]
    TooMuch { wanted: u64, gpu: Box<Gpu> },
    #[error(
        "--cores {wanted}: {gpu} has only {left} of its 100 left, because {}; {}end commands of the others",
        cores_of(.others), if *.left > 0 { format!("ask for at most {left} for share {share:?}, or ") } else { String::new() }
    )]
    TooManyCores {
        wanted: u32,
        share: String,
        gpu: String,
        left: u32,
        others: Vec<(String, u32)>,
    },
    #[error(
        "--gpu {0}: {SLOTS} shares use this GPU, and it has no page for one more; join one with --share, or end one"
    )]
    NoSlot(String),
    #[error(
        "--compute-policy guaranteed: share {0:?} may never use more than its cores, and has 0; add --cores with 1 to \
         100, or use balanced"
    )]
    GuaranteedWithoutCores(String),
    #[error("--{flag} {wanted}: share {share:?} has {has}; leave the flag out, or use another --share")]
    Differs {
        flag: &'static str,
        wanted: String,
        share: String,
        has: String,
    },
    #[error("--soft-gpu: share {0:?} is on a GPU of the NVIDIA driver; leave the flag out, or use another --share")]
    NotSoft(String),
}

/// Decides on `request`: for a new share on `driver`, or for one that exists. `others` are all shares of this user.
///
/// # Errors The GPU does not exist or has less memory or cores than the request, or the existing share has other
/// limits.
pub fn decide(
    request: &Request,
    existing: Option<&Existing>,
    driver: &Driver,
    gpus: Option<&[Gpu]>,
    others: &[Limits],
) -> Result<Decision, PlanError> {
    match existing {
        Some(existing) => join(request, existing, gpus),
        None => match gpus {
            Some(gpus) => create(request, driver, gpus, others),
            None => Ok(Decision::AskGpus),
        },
    }
}

/// Returns the index in `gpus` of the GPU for a new share.
#[must_use]
pub fn chosen(request: &Request, gpus: &[Gpu]) -> Option<usize> {
    let gpu = find(wanted(request), gpus).ok()?;
    gpus.iter().position(|known| known.uuid == gpu.uuid)
}

fn wanted(request: &Request) -> &GpuChoice {
    request.gpu.as_ref().unwrap_or(&GpuChoice::Index(0))
}

fn create(request: &Request, driver: &Driver, gpus: &[Gpu], others: &[Limits]) -> Result<Decision, PlanError> {
    let gpu = find(wanted(request), gpus)?;
    let memory = request.memory.unwrap_or(gpu.memory);
    if memory > gpu.memory {
        return Err(PlanError::TooMuch {
            wanted: memory,
            gpu: Box::new(gpu.clone()),
        });
    }
    let share = request.share.as_deref().unwrap_or(OWN_SHARE);
    let cores = request.cores.unwrap_or(0);
    if request.compute_policy == Some(ComputePolicy::Guaranteed) && cores == 0 {
        return Err(PlanError::GuaranteedWithoutCores(share.to_owned()));
    }
    let on_gpu = others.iter().filter(|other| other.gpu == gpu.uuid && other.cores > 0);
    let on_gpu: Vec<(String, u32)> = on_gpu.map(|other| (other.share.clone(), other.cores)).collect();
    let left = CORES_MAX.saturating_sub(on_gpu.iter().map(|(_, cores)| cores).sum());
    if cores > left {
        return Err(PlanError::TooManyCores {
            wanted: cores,
            share: share.to_owned(),
            gpu: name(gpu),
            left,
            others: on_gpu,
        });
    }
    let slot = arbitration::free_slot(&gpu.uuid, others).ok_or_else(|| PlanError::NoSlot(choice(gpu)))?;
    let is_whole = memory == gpu.memory;
    let unasked = || ComputePolicy::default().of_share(cores, is_whole);
    Ok(Decision::Create(Box::new(Limits {
        cores,
        compute_policy: request.compute_policy.unwrap_or_else(unasked),
        priority: request.priority.unwrap_or_default(),
        slot: Some(slot),
        context_reserve: gpu.context.map(|size| size.own),
        context_unowned: gpu.context.map_or(0, |size| size.unowned),
        ..Limits::of_memory(share, &gpu.uuid, memory, &driver.libcuda, &driver.libnvidia_ml)
    })))
}

fn join(request: &Request, existing: &Existing, gpus: Option<&[Gpu]>) -> Result<Decision, PlanError> {
    let has = &existing.limits;
    let differs = |flag, wanted: String, has_value: String| PlanError::Differs {
        flag,
        wanted,
        share: has.share.clone(),
        has: has_value,
    };
    if request.soft_gpu && !existing.soft_gpu {
        return Err(PlanError::NotSoft(has.share.clone()));
    }
    if let Some(wanted) = request.memory.filter(|wanted| *wanted != has.memory) {
        return Err(differs("memory", format_bytes(wanted), format_bytes(has.memory)));
    }
    if let Some(wanted) = request.cores.filter(|wanted| *wanted != has.cores) {
        return Err(differs("cores", wanted.to_string(), has.cores.to_string()));
    }
    if let Some(wanted) = request.compute_policy.filter(|wanted| *wanted != has.compute_policy) {
        let (wanted, has) = (word(wanted.name()), word(has.compute_policy.name()));
        return Err(differs("compute-policy", wanted, has));
    }
    if let Some(wanted) = request.priority.filter(|wanted| *wanted != has.priority) {
        return Err(differs("priority", word(wanted.name()), word(has.priority.name())));
    }
    if let Some(wanted) = &request.gpu {
        let Some(gpus) = gpus else {
            return Ok(Decision::AskGpus);
        };
        let gpu = find(wanted, gpus)?;
        if gpu.uuid != has.gpu {
            return Err(differs("gpu", wanted.to_string(), has.gpu.clone()));
        }
    }
    Ok(Decision::Join)
}

fn find<'a>(wanted: &GpuChoice, gpus: &'a [Gpu]) -> Result<&'a Gpu, PlanError> {
    let found = gpus.iter().find(|gpu| match wanted {
        GpuChoice::Index(index) => gpu.index == *index && gpu.instance.is_none(),
        GpuChoice::Uuid(uuid) => gpu.uuid.eq_ignore_ascii_case(uuid),
    });
    found.ok_or_else(|| {
        let is_in = |gpu: &&Gpu| matches!(wanted, GpuChoice::Index(index) if gpu.index == *index);
        let instances: Vec<Gpu> = gpus.iter().filter(is_in).cloned().collect();
        match instances.first() {
            Some(first) => PlanError::Divided {
                gpu: first.index,
                instances,
            },
            None => PlanError::NoGpu {
                wanted: wanted.clone(),
                gpus: gpus.to_vec(),
            },
        }
    })
}

/// A GPU in a sentence.
fn name(gpu: &Gpu) -> String {
    match &gpu.instance {
        Some(instance) => format!("instance {instance} of GPU {}", gpu.index),
        None => format!("GPU {}", gpu.index),
    }
}

/// A GPU as a caller names it.
fn choice(gpu: &Gpu) -> String {
    match gpu.instance {
        Some(_) => gpu.uuid.clone(),
        None => gpu.index.to_string(),
    }
}

fn cores_of(shares: &[(String, u32)]) -> String {
    let texts: Vec<_> = shares
        .iter()
        .map(|(name, cores)| format!("share {name:?} has {cores}"))
        .collect();
    texts.join(" and ")
}

fn list(gpus: &[Gpu]) -> String {
    let text = |gpu: &Gpu| match &gpu.instance {
        Some(instance) => format!("{} ({instance} of GPU {})", gpu.uuid, gpu.index),
        None => format!("{} ({})", gpu.index, gpu.uuid),
    };
    let texts: Vec<_> = gpus.iter().map(text).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::asked;
    use vgpu_abi::limits::Priority;

    const GIB: u64 = 1 << 30;

    fn gpus() -> Vec<Gpu> {
        ["GPU-aa", "GPU-bb"]
            .into_iter()
            .zip(0..)
            .map(|(uuid, index)| Gpu {
                index,
                uuid: uuid.into(),
                instance: None,
                memory: 80 * GIB - 2 * (1 << 20),
                kind: vgpu_context_size::Kind {
                    driver_version: "550.1".into(),
                    model: "NVIDIA H100".into(),
                },
                context: Some(vgpu_context_size::ContextSize {
                    own: 518 << 20,
                    unowned: 64 << 20,
                }),
            })
            .collect()
    }

    fn driver() -> Driver {
        Driver {
            libcuda: "/real/libcuda.so.1".into(),
            libnvidia_ml: "/real/libnvidia-ml.so.1".into(),
        }
    }

    /// Decides for a new share beside these others.
    fn decided(request: &Request, others: &[Limits]) -> Result<Decision, PlanError> {
        decide(request, None, &driver(), Some(&gpus()), others)
    }

    fn refused(flags: &str, others: &[Limits]) -> String {
        decided(&asked(flags), others).unwrap_err().to_string()
    }

    fn created(request: &Request) -> Limits {
        match decided(request, &[]) {
            Ok(Decision::Create(limits)) => *limits,
            other => panic!("{other:?}"),
        }
    }

    /// GPU 0 has two instances, and GPU 1 is not in MIG mode.
    fn divided() -> Vec<Gpu> {
        let [mut one, whole] = <[Gpu; 2]>::try_from(gpus()).expect("two");
        (one.uuid, one.instance, one.memory) = ("MIG-a".into(), Some("3g.40gb@0".into()), 39 * GIB);
        let mut other = one.clone();
        (other.uuid, other.instance, other.memory) = ("MIG-b".into(), Some("1g.10gb@4".into()), 9 * GIB);
        vec![whole, one, other]
    }

    #[test]
    fn a_gpu_in_mig_mode_is_shared_by_its_instances() {
        let decide_on =
            |request: &Request, others: &[Limits]| decide(request, None, &driver(), Some(&divided()), others);
        let refused = |request: &Request, others: &[Limits]| decide_on(request, others).unwrap_err().to_string();
        let names = "name one of its instances: MIG-a (3g.40gb@0 of GPU 0), MIG-b (1g.10gb@4 of GPU 0)";
        for flags in ["", "--gpu 0", "--memory 1Gi"] {
            let line = refused(&asked(flags), &[]);
            assert!(
                line.starts_with("--gpu 0: this GPU is in MIG mode") && line.ends_with(names),
                "{line}"
            );
        }
        let line = refused(&asked("--gpu 3"), &[]);
        assert!(line.contains("it has 1 (GPU-bb), MIG-a (3g.40gb@0 of GPU 0)"), "{line}");
        let on = |uuid: &str, flags: &str| Request {
            gpu: Some(GpuChoice::Uuid(uuid.into())),
            ..asked(flags)
        };
        let created = |request: &Request| match decide_on(request, &[]) {
            Ok(Decision::Create(limits)) => (limits.gpu, limits.memory, limits.compute_policy),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            created(&on("mig-B", "")),
            ("MIG-b".into(), 9 * GIB, ComputePolicy::Unlimited),
            "whole"
        );
        assert_eq!(created(&on("MIG-b", "--memory 2Gi")).1, 2 * GIB);
        let line = refused(&on("MIG-b", "--memory 10Gi"), &[]);
        assert!(line.contains("instance 1g.10gb@4 of GPU 0 has only 9Gi"), "{line}");
        // An instance's time is its own: another instance of the GPU takes nothing of it.
        let other = |gpu: &str| Limits {
            cores: 90,
            ..Limits::of_memory("a", gpu, GIB, "/c", "/n")
        };
        assert!(decide_on(&on("MIG-b", "--memory 1Gi --cores 50"), &[other("MIG-a")]).is_ok());
        let line = refused(&on("MIG-b", "--memory 1Gi --cores 50"), &[other("MIG-b")]);
        assert!(
            line.starts_with("--cores 50: instance 1g.10gb@4 of GPU 0 has only 10"),
            "{line}"
        );
    }

    #[test]
    fn nothing_asked_is_the_whole_first_gpu() {
        let limits = created(&asked(""));
        let memory = 80 * GIB - 2 * (1 << 20);
        assert_eq!((limits.memory, limits.cores, &*limits.gpu), (memory, 0, "GPU-aa"));
        let context = (limits.context_reserve, limits.context_unowned);
        assert_eq!(context, (Some(518 << 20), 64 << 20), "as it was measured");
        assert_eq!(Limits::parse(limits.render().as_bytes()), Ok(limits));
    }

    #[test]
    fn a_gpu_goes_by_index_and_by_uuid() {
        for choice in [GpuChoice::Index(1), GpuChoice::Uuid("gpu-BB".into())] {
            let gpu = Some(choice);
            let limits = created(&Request { gpu, ..asked("") });
            assert_eq!(limits.gpu, "GPU-bb");
        }
        let known = "--gpu 2: this machine has no such GPU; it has 0 (GPU-aa), 1 (GPU-bb)";
        assert_eq!(refused("--gpu 2", &[]), known);
    }

    #[test]
    fn memory_ends_at_what_the_gpu_has() {
        assert_eq!(created(&asked("--memory 81918Mi")).memory, 80 * GIB - 2 * (1 << 20));
        let line = refused("--memory 81Gi", &[]);
        assert_eq!(line, "--memory 81Gi: GPU 0 has only 81918Mi; ask for at most that");
    }

    #[test]
    fn cores_are_at_most_100_in_sum_on_a_gpu() {
        let other = |share: &str, gpu: &str, cores| Limits {
            cores,
            ..Limits::of_memory(share, gpu, GIB, "/c", "/n")
        };
        let others = [("a", "GPU-aa", 30), ("b", "GPU-bb", 90), ("c", "GPU-aa", 0)];
        let others = others.map(|(share, gpu, cores)| other(share, gpu, cores));
        assert!(matches!(
            decided(&asked("--cores 70 --share x"), &others),
            Ok(Decision::Create(_))
        ));
        assert_eq!(
            refused("--cores 71 --share x", &others),
            "--cores 71: GPU 0 has only 70 of its 100 left, because share \"a\" has 30; ask for at most 70 for share \
             \"x\", or end commands of the others"
        );
        let two = [other("a", "GPU-aa", 30), other("run", "GPU-aa", 70)];
        let line = refused("--cores 1 --share x", &two);
        assert!(line.contains("share \"a\" has 30 and share \"run\" has 70"), "{line}");
        assert!(decided(&asked("--cores 0 --share x"), &two).is_ok());
    }

    #[test]
    fn a_share_gets_a_free_slot_until_none_is_left() {
        let other = |slot| Limits {
            slot,
            ..Limits::of_memory("a", "GPU-aa", GIB, "/c", "/n")
        };
        let others: Vec<_> = (0..63).map(Some).map(other).collect();
        match decided(&asked(""), &others) {
            Ok(Decision::Create(limits)) => assert_eq!(limits.slot, Some(63)),
            found => panic!("{found:?}"),
        }
        let all: Vec<_> = (0..64).map(Some).map(other).collect();
        let line = refused("", &all);
        assert!(line.starts_with("--gpu 0: 64 shares use this GPU"), "{line}");
    }

    #[test]
    fn the_policy_is_balanced_unless_it_is_said_or_the_gpu_is_whole() {
        use ComputePolicy::{Balanced, Guaranteed, Unlimited};
        for (flags, expected) in [
            ("", Unlimited),
            ("--cores 0", Unlimited),
            ("--cores 30", Balanced),
            ("--memory 1Gi", Balanced),
            ("--compute-policy balanced", Balanced),
            ("--memory 1Gi --cores 1 --compute-policy guaranteed", Guaranteed),
            ("--memory 1Gi --cores 1 --compute-policy unlimited", Unlimited),
        ] {
            let limits = created(&asked(&format!("{flags} --priority high")));
            assert_eq!((limits.compute_policy, limits.priority), (expected, Priority::High));
        }
        for cores in ["", "--cores 0"] {
            let line = refused(&format!("{cores} --compute-policy guaranteed"), &[]);
            assert!(line.starts_with("--compute-policy guaranteed: share \"run\""), "{line}");
        }
    }

    #[test]
    fn joining_takes_the_shares_limits_and_refuses_others() {
        let existing = Existing {
            limits: created(&asked("--memory 20Gi --cores 25 --share a")),
            soft_gpu: false,
        };
        let join = |request: &Request, gpus: Option<&[Gpu]>| decide(request, Some(&existing), &driver(), gpus, &[]);
        assert_eq!(join(&asked("--share a"), None), Ok(Decision::Join));
        let same = "--share a --memory 20Gi --cores 25 --compute-policy balanced --priority low";
        assert_eq!(join(&asked(same), None), Ok(Decision::Join));
        let by_index = asked("--share a --gpu 0");
        assert_eq!(join(&by_index, None), Ok(Decision::AskGpus));
        assert_eq!(join(&by_index, Some(&gpus())), Ok(Decision::Join));
        let line = |request: &Request| join(request, Some(&gpus())).unwrap_err().to_string();
        for (flags, has) in [
            ("--memory 10Gi", "20Gi"),
            ("--cores 0", "25"),
            ("--compute-policy guaranteed", "balanced"),
            ("--priority high", "low"),
            ("--gpu 1", "GPU-aa"),
        ] {
            let line = line(&asked(&format!("--share a {flags}")));
            assert!(line.starts_with(&format!("{flags}: share \"a\" has {has}")), "{line}");
        }
        let soft = Request {
            soft_gpu: true,
            ..asked("--share a")
        };
        let line = line(&soft);
        assert!(
            line.starts_with("--soft-gpu: share \"a\" is on a GPU of the NVIDIA driver"),
            "{line}"
        );
    }

    #[test]
    fn a_new_share_needs_the_gpus() {
        assert_eq!(decide(&asked(""), None, &driver(), None, &[]), Ok(Decision::AskGpus));
    }
}
