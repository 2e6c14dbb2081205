//! What each dialect's asks become: every row of the table of issue 17, and every rule of docs/migrate.md.

mod support;

use serde_json::{Value, json};
use support::{amounts, annotated, limits, pod, request, translated, warnings, with};
use vgpu_api::config::{AllocationPolicy, Dialect, Priority};
use vgpu_dialects::{Instance, Memory, Request, Settings};

const MI: u64 = 1 << 20;

fn mebibytes(number: u64) -> Memory {
    Memory::Bytes(number * MI)
}

fn percent(number: u32) -> Memory {
    Memory::Millionths(number * 10_000)
}

fn fraction(dialect: Dialect, count: u32, memory: Memory, cores: u32) -> Request {
    Request {
        cores,
        ..Request::fraction(count, memory, dialect)
    }
}

/// The object made from `KEY=VALUE` words, with `prefix` before each key.
fn prefixed(prefix: &str, text: &str) -> Value {
    let words = text.split(' ').map(|word| format!("{prefix}{word} "));
    amounts(&words.collect::<String>())
}

fn each_becomes<const N: usize>(prefix: &str, table: [(&str, Request); N]) {
    for (asked, expected) in table {
        let translation = translated(&limits(prefixed(prefix, asked)));
        assert_eq!(request(&translation), expected, "{asked}");
    }
}

#[test]
fn hami() {
    let part = |count, memory, cores| fraction(Dialect::Hami, count, memory, cores);
    let whole = |count| Request::whole(count, Dialect::Hami);
    let table = [
        ("gpu=1 gpumem=3000 gpucores=30", part(1, mebibytes(3000), 30)),
        ("gpu=2 gpumem=3000", part(2, mebibytes(3000), 0)),
        // One GPU if the number is left out.
        ("gpumem=3000", part(1, mebibytes(3000), 0)),
        ("gpumem-percentage=50", part(1, percent(50), 0)),
        ("gpucores=30", part(1, Memory::All, 30)),
        // Bytes, as a webhook sees 3000M.
        ("gpu=1 gpumem=3G", part(1, mebibytes(2862), 0)),
        ("gpu=1 gpumem=2Gi", part(1, mebibytes(2048), 0)),
        ("gpu=1 gpumem-percentage=25 gpucores=25", part(1, percent(25), 25)),
        // gpumem wins.
        ("gpumem=3000 gpumem-percentage=50", part(1, mebibytes(3000), 0)),
        // 0 is not given.
        ("gpu=1 gpumem=0 gpumem-percentage=50", part(1, percent(50), 0)),
        // All memory, and no cores: whole GPUs.
        ("gpu=1", whole(1)),
        ("gpu=8", whole(8)),
        ("gpu=1 gpumem-percentage=100", whole(1)),
        ("gpu=1 gpumem=3000 gpucores=100", whole(1)),
        ("gpu=1 gpucores=150", whole(1)),
        ("gpu=1 gpucores=0", part(1, Memory::All, 0)),
    ];
    each_becomes("nvidia.com/", table);
}

#[test]
fn instances_of_gpus() {
    let of = |count, profile: &str| Request::instances(count, Instance::Profile(profile.to_owned()), Dialect::Hami);
    let table = [
        ("mig-1g.10gb=1", of(1, "1g.10gb")),
        ("mig-3g.40gb=2", of(2, "3g.40gb")),
        ("mig-1g.10gb.me=1", of(1, "1g.10gb+me")),
    ];
    each_becomes("nvidia.com/", table);
    // None of a profile is asked for beside others.
    let none = translated(&limits(
        json!({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-3g.40gb": 0, "nvidia.com/gpu": 0}),
    ));
    assert_eq!(request(&none), of(1, "1g.10gb"));
    let modes = [
        (
            "nvidia.com/vgpu-mode",
            json!({"nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 100}),
            Dialect::Hami,
        ),
        (
            "volcano.sh/vgpu-mode",
            json!({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8000, "volcano.sh/vgpu-cores": 30}),
            Dialect::VolcanoVgpu,
        ),
    ];
    for (mode, limits, dialect) in modes {
        let translation = translated(&annotated(mode, "mig", limits));
        let at_least = Request::instances(1, Instance::AtLeast(8000 * MI), dialect);
        assert_eq!(request(&translation), at_least, "{mode}");
        assert!(
            warnings(&translation).contains("cores]: is lost: an instance"),
            "{}",
            warnings(&translation)
        );
    }
    // Only the part of this GPU.
    let metadata = json!({"annotations": {"nvidia.com/vgpu-mode": "mig", "nvidia.com/use-gpuuuid": "GPU-1"}});
    let asked = request(&translated(&pod(metadata, json!({"nvidia.com/gpumem": 8000}))));
    assert_eq!(asked.devices.use_uuids, ["GPU-1"]);
}

#[test]
fn annotations_beside_a_profile_are_warned_of() {
    let metadata = json!({"annotations": {"nvidia.com/vgpu-mode": "mig", "nvidia.com/use-gpuuuid": "GPU-1",
        "nvidia.com/numa-bind": "true"}});
    let said = warnings(&translated(&pod(metadata, json!({"nvidia.com/mig-1g.10gb": 1}))));
    for key in ["use-gpuuuid", "numa-bind"] {
        let words =
            format!("metadata.annotations[nvidia.com/{key}]: has no effect on containers that ask for instances");
        assert!(said.contains(&words), "{said}");
    }
    assert!(!said.contains("vgpu-mode]"), "{said}");
}

#[test]
fn a_resource_that_names_no_profile_is_warned_of() {
    let unknown = limits(json!({"nvidia.com/mig-small": 1}));
    assert_eq!(vgpu_dialects::translate(&unknown, &Settings::default()), Ok(None));
    let said = vgpu_dialects::unread(&unknown, &Settings::default());
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert!(
        said[0].contains("[nvidia.com/mig-small]: is not read: it names no profile"),
        "{said:?}"
    );
    let beside = translated(&limits(json!({"nvidia.com/mig-small": 1, "nvidia.com/mig-1g.10gb": 1})));
    let said = warnings(&beside);
    assert!(
        said.contains("[nvidia.com/mig-small]: is not read and stays as it is"),
        "{said}"
    );
}

#[test]
fn hami_warns_of_what_it_changes() {
    for (asked, said) in [
        ("gpumem=3G", "is too large for MiB and is read as bytes: 2862Mi"),
        (
            "gpumem=3000 gpumem-percentage=50",
            "nvidia.com/gpumem is given too, and counts",
        ),
        ("gpu=1 gpucores=150", "150 is more than a GPU has: 100 counts"),
        ("gpumem=3000 gpucores=100", "gets all of their memory"),
        ("gpumem=3000 priority=0", "translate.highPriorityClass"),
        ("gpumem=3000", "ResourceQuotas for nvidia.com/gpumem count 0"),
        (
            "gpumem=3000 gpumen=1",
            "limits[nvidia.com/gpumen]: is not read and stays as it is",
        ),
    ] {
        let said_now = warnings(&translated(&limits(prefixed("nvidia.com/", asked))));
        assert!(said_now.contains(said), "{asked}: {said_now}");
    }
}

#[test]
fn hami_priority() {
    let asked = |priority: u32| limits(json!({"nvidia.com/gpumem": 3000, "nvidia.com/priority": priority}));
    let granted = Settings {
        high_priority_class: Some("vgpu-high".to_owned()),
        ..Settings::default()
    };
    let high = request(&with(&asked(0), &granted));
    assert_eq!(
        (high.class.as_str(), high.priority),
        ("vgpu-high", Some(Priority::High))
    );
    let low = request(&with(&asked(1), &granted));
    assert_eq!((low.class.as_str(), low.priority), ("vgpu", Some(Priority::Low)));
    let without_class = request(&translated(&asked(0)));
    assert_eq!(
        (without_class.class.as_str(), without_class.priority),
        ("vgpu", Some(Priority::Low))
    );
    assert_eq!(
        request(&translated(&limits(json!({"nvidia.com/gpumem": 3000})))).priority,
        None
    );
    // Class gpu is for whole GPUs: a claim of it with an amount would be refused.
    let wrong = Settings {
        high_priority_class: Some("gpu".to_owned()),
        ..Settings::default()
    };
    let not_granted = with(&asked(0), &wrong);
    assert_eq!(request(&not_granted), request(&translated(&asked(0))));
    assert!(warnings(&not_granted).contains("the container gets Low"));
    // Nobody else uses a whole GPU.
    let whole = limits(json!({"nvidia.com/gpu": 1, "nvidia.com/priority": 0}));
    assert_eq!(request(&with(&whole, &granted)), Request::whole(1, Dialect::Hami));
}

#[test]
fn hami_annotations_choose_gpus_and_policy() {
    let asked = json!({"nvidia.com/gpumem": 3000});
    let of = |key: &str, value: &str| request(&translated(&annotated(key, value, asked.clone())));
    let types = of("nvidia.com/use-gputype", " A100 ,h100,, A100");
    assert_eq!(types.devices.use_types, ["a100", "h100"]);
    assert_eq!(of("nvidia.com/nouse-gputype", "T4").devices.not_types, ["t4"]);
    assert_eq!(
        of("nvidia.com/use-gpuuuid", "GPU-b,GPU-a").devices.use_uuids,
        ["GPU-a", "GPU-b"]
    );
    assert_eq!(of("nvidia.com/nouse-gpuuuid", "GPU-a").devices.not_uuids, ["GPU-a"]);
    assert!(of("nvidia.com/use-gputype", "").devices.is_any());
    for (key, value, policy) in [
        (
            "hami.io/gpu-scheduler-policy",
            "binpack",
            Some(AllocationPolicy::Binpack),
        ),
        ("hami.io/gpu-scheduler-policy", "spread", Some(AllocationPolicy::Spread)),
        (
            "hami.io/gpu-scheduler-policy",
            "topology-aware",
            Some(AllocationPolicy::Pcie),
        ),
        ("hami.io/gpu-scheduler-policy", "numa", Some(AllocationPolicy::Numa)),
        (
            "hami.io/gpu-scheduler-policy",
            "spread,binpack",
            Some(AllocationPolicy::Spread),
        ),
        ("hami.io/gpu-scheduler-policy", "best", None),
        ("nvidia.com/numa-bind", "true", Some(AllocationPolicy::Numa)),
        ("nvidia.com/numa-bind", "false", None),
        ("nvidia.com/vgpu-mode", "hami-core", None),
    ] {
        assert_eq!(of(key, value).allocation_policy, policy, "{key}: {value}");
    }
    // Idle GPUs only.
    assert!(of("hami.io/gpu-scheduler-policy", "mutex").is_whole());
    assert!(of("hami.io/gpu-scheduler-policy", "mutex,binpack").is_whole());
}

#[test]
fn koordinator() {
    let part = |count, memory, cores| fraction(Dialect::Koordinator, count, memory, cores);
    let whole = |count| Request::whole(count, Dialect::Koordinator);
    let table = [
        ("gpu=50", part(1, percent(50), 50)),
        ("gpu=100", whole(1)),
        ("gpu=400", whole(4)),
        ("gpu-memory=8Gi", part(1, mebibytes(8192), 0)),
        ("gpu-memory-ratio=30", part(1, percent(30), 0)),
        ("gpu-memory-ratio=200", part(2, Memory::All, 0)),
        ("gpu-core=50 gpu-memory=8Gi", part(1, mebibytes(8192), 50)),
        ("gpu-core=60 gpu-memory-ratio=40", part(1, percent(40), 60)),
        ("gpu-core=100 gpu-memory-ratio=100", whole(1)),
        ("gpu-core=200 gpu-memory-ratio=200", whole(2)),
        ("gpu-core=200 gpu-memory=16Gi", part(2, mebibytes(8192), 100)),
        // Totals of S GPUs.
        (
            "gpu.shared=2 gpu-core=100 gpu-memory-ratio=100",
            part(2, percent(50), 50),
        ),
        ("gpu.shared=2 gpu-memory=16Gi", part(2, mebibytes(8192), 0)),
        (
            "gpu.shared=1 gpu-core=50 gpu-memory=10Gi",
            part(1, mebibytes(10_240), 50),
        ),
        ("gpu.shared=2 gpu-core=200 gpu-memory-ratio=200", whole(2)),
    ];
    each_becomes("koordinator.sh/", table);
}

#[test]
fn koordinators_isolation_label_is_read_in_any_case() {
    let of = |value: &str| {
        let labels = json!({"labels": {"koordinator.sh/gpu-isolation-provider": value}});
        warnings(&translated(&pod(labels, json!({"koordinator.sh/gpu": 50}))))
    };
    assert!(!of("HAMi-core").contains("isolation"), "{}", of("HAMi-core"));
    assert!(!of("hami-core").contains("isolation"));
    assert!(of("other").contains("\"other\" is not known here"));
}

#[test]
fn volcano() {
    let table = [
        ("gpu-memory=1024", fraction(Dialect::Volcano, 1, mebibytes(1024), 0)),
        ("gpu-number=2", Request::whole(2, Dialect::Volcano)),
    ];
    each_becomes("volcano.sh/", table);
}

#[test]
fn volcano_vgpu() {
    let part = |count, memory, cores| fraction(Dialect::VolcanoVgpu, count, memory, cores);
    let table = [
        (
            "vgpu-number=1 vgpu-memory=3000 vgpu-cores=50",
            part(1, mebibytes(3000), 50),
        ),
        ("vgpu-memory=3000", part(1, mebibytes(3000), 0)),
        // A percentage takes precedence here.
        ("vgpu-memory=3000 vgpu-memory-percentage=50", part(1, percent(50), 0)),
        // Cores stay 0, and so the GPU is shared.
        ("vgpu-number=2", part(2, Memory::All, 0)),
        ("vgpu-number=1 vgpu-cores=100", Request::whole(1, Dialect::VolcanoVgpu)),
    ];
    each_becomes("volcano.sh/", table);
    let chosen = json!({"annotations": {
        "volcano.sh/vgpu-use-gpuuuid": "GPU-1", "volcano.sh/vgpu-nouse-gpuuuid": "GPU-2",
        "nvidia.com/use-gputype": "A100",
    }});
    let devices = request(&translated(&pod(chosen, json!({"volcano.sh/vgpu-number": 1})))).devices;
    assert_eq!(
        (devices.use_uuids, devices.not_uuids),
        (vec!["GPU-1".to_owned()], vec!["GPU-2".to_owned()])
    );
    assert_eq!(devices.use_types, ["a100"]);
}

#[test]
fn gpu_manager() {
    let part = |memory, cores| fraction(Dialect::GpuManager, 1, memory, cores);
    let asked = json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4});
    assert_eq!(request(&translated(&limits(asked.clone()))), part(mebibytes(1024), 50));
    for (core, count) in [(100, 1), (300, 3)] {
        let whole = json!({"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": 4});
        let translation = translated(&limits(whole));
        assert_eq!(request(&translation), Request::whole(count, Dialect::GpuManager));
        assert!(warnings(&translation).contains("is ignored"));
    }
    let limited = |limit: &str| {
        request(&translated(&annotated(
            "tencent.com/vcuda-core-limit",
            limit,
            asked.clone(),
        )))
    };
    let guaranteed = Request {
        guaranteed: true,
        ..part(mebibytes(1024), 50)
    };
    assert_eq!(limited("50"), guaranteed);
    assert_eq!(limited("80"), part(mebibytes(1024), 50));
    assert_eq!(
        limited("30"),
        Request {
            cores: 30,
            ..guaranteed.clone()
        }
    );
}

/// GPUSharing's own webhook writes the limit, so that its users' pods do not have it.
#[test]
fn gpusharing_always_limits_the_cores() {
    let settings = Settings {
        limit_vcuda_cores: true,
        ..Settings::default()
    };
    let asked = || json!({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4});
    let limited = |cores| Request {
        guaranteed: true,
        ..fraction(Dialect::GpuManager, 1, mebibytes(1024), cores)
    };
    let translation = with(&limits(asked()), &settings);
    assert_eq!(request(&translation), limited(50));
    for (annotation, cores) in [("50", 50), ("80", 50), ("30", 30)] {
        let pod = annotated("tencent.com/vcuda-core-limit", annotation, asked());
        let translation = with(&pod, &settings);
        assert_eq!(request(&translation), limited(cores), "{annotation}");
        assert!(!warnings(&translation).contains("without this limit"), "{annotation}");
    }
    // A whole GPU is not shared, so no limit is needed.
    let whole = with(&limits(json!({"tencent.com/vcuda-core": 100})), &settings);
    assert_eq!(request(&whole), Request::whole(1, Dialect::GpuManager));
}

#[test]
fn kai() {
    for (annotations, memory, count) in [
        ("gpu-fraction=0.5", percent(50), 1),
        ("gpu-fraction=0.333", Memory::Millionths(333_000), 1),
        ("gpu-memory=4096", mebibytes(4096), 1),
        ("gpu-fraction=0.5 gpu-fraction-num-devices=2", percent(50), 2),
        ("gpu-memory=2000 gpu-fraction-num-devices=4", mebibytes(2000), 4),
        ("nvidia.com/container.main.gpu-memory.request=4Gi", mebibytes(4096), 1),
        ("nvidia.com/container.main.gpu-memory.limit=4Gi", mebibytes(4096), 1),
        // Rounded up to MiB, and quantities that Kubernetes itself rounds are none the less quantities.
        ("nvidia.com/container.main.gpu-memory.limit=3000M", mebibytes(2862), 1),
        (
            "nvidia.com/container.main.gpu-memory.limit=4.1Gi gpu-fraction-num-devices=2",
            mebibytes(4199),
            2,
        ),
        // The limit counts.
        (
            "nvidia.com/container.main.gpu-memory.request=1Mi nvidia.com/container.main.gpu-memory.limit=4Gi",
            mebibytes(4096),
            1,
        ),
        // As KAI's webhook leaves a pod with the older annotations.
        (
            "nvidia.com/container.main.gpu-memory.request=4Gi gpu-memory=4096",
            mebibytes(4096),
            1,
        ),
        (
            "nvidia.com/container.main.gpu-memory.request=4Gi nvidia.com/container.main.gpu-memory.limit=8Gi \
             gpu-memory=4096 gpu-memory.limit=8Gi gpu-fraction-container-name=main",
            mebibytes(8192),
            1,
        ),
        (
            "nvidia.com/container.main.gpu-memory.request=4Gi gpu-fraction=0.5",
            mebibytes(4096),
            1,
        ),
    ] {
        let translation = translated(&pod(json!({"annotations": amounts(annotations)}), json!({"cpu": "1"})));
        assert_eq!(
            request(&translation),
            fraction(Dialect::Kai, count, memory, 0),
            "{annotations}"
        );
    }
}

/// A share has one size, so a request below the limit is not what is allocated; nor is an older annotation beside a newer one.
#[test]
fn kai_warns_of_annotations_that_do_not_count() {
    let said = |annotations: &str| {
        let annotations = amounts(&annotations.replace("main.", "nvidia.com/container.main.gpu-memory."));
        warnings(&translated(&pod(
            json!({"annotations": annotations}),
            json!({"cpu": "1"}),
        )))
    };
    let below = "metadata.annotations[nvidia.com/container.main.gpu-memory.request]: does not count: a share has one size, the \
                 limit, and all of it is allocated: 8Gi";
    assert!(said("main.request=4Gi main.limit=8Gi").contains(below));
    for silent in [
        "main.request=8Gi main.limit=8192Mi",
        "main.request=4Gi",
        "main.request=4Gi gpu-memory=4096",
    ] {
        assert_eq!(said(silent), "", "{silent}");
    }
    let older = said("main.request=4Gi gpu-fraction=0.5");
    assert!(
        older.contains("[gpu-fraction]: does not count beside nvidia.com/container.main.gpu-memory.request"),
        "{older}"
    );
}

/// KAI gives one container the GPU: the first, or the one that is named.
#[test]
fn kai_gives_one_container_the_gpu() {
    let pod = |annotations: Value| {
        support::read(json!({"metadata": {"annotations": annotations}, "spec": {
            "initContainers": [{"name": "init"}],
            "containers": [{"name": "a"}, {"name": "b"}],
        }}))
    };
    let first = translated(&pod(json!({"gpu-fraction": "0.5"})));
    let named = |name: &str| {
        translated(&pod(
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": name}),
        ))
    };
    let in_key = |name: &str| {
        let key = format!("nvidia.com/container.{name}.gpu-memory.limit");
        translated(&pod(json!({key: "4Gi"})))
    };
    for (translation, container) in [
        (first, "a"),
        (named("b"), "b"),
        (named("init"), "init"),
        (in_key("b"), "b"),
        (in_key("init"), "init"),
    ] {
        for name in ["init", "a", "b"] {
            let expected = usize::from(name == container);
            assert_eq!(
                support::claims(&translation.pod, name).len(),
                expected,
                "{container}: {name}"
            );
        }
    }
}

/// KAI's pods choose their isolation; here it is the same for all, and each annotation that changes nothing gets a warning.
#[test]
fn kai_says_what_becomes_of_its_ways_of_isolation() {
    let with = |key: &str, value: &str| {
        let annotations = json!({"annotations": {"gpu-fraction": "0.5", key: value}});
        warnings(&translated(&pod(annotations, json!({"cpu": "1"}))))
    };
    const MPS: &str = "is lost: MPS is not started";
    for (key, value, said) in [
        ("mps", "true", Some(MPS)),
        ("mps", "", Some(MPS)),
        ("mps", "false", None),
        ("nvidia.com/container.main.gpu-compute.mode", "sm-sharing", Some(MPS)),
        ("nvidia.com/container.main.gpu-compute.mode", "time-slicing", None),
        ("kai.scheduler/gpu-compute-sharing-mode", "sm-sharing", Some(MPS)),
        ("kai.scheduler/gpu-compute-sharing-mode", "time-slicing", None),
        (
            "nvidia.com/container.main.gpu-compute.modes",
            "time-slicing",
            Some("is not read"),
        ),
        ("gpu-fraction.limit", "0.7", Some("is lost: a share has one size")),
        (
            "kai-resource-isolator.io/inject",
            "false",
            Some("is lost: the limit of memory holds in every share, and no DeviceClass lifts it"),
        ),
        ("kai-resource-isolator.io/inject", "true", None),
    ] {
        let all = with(key, value);
        let line = all
            .lines()
            .find(|line| line.contains(&format!("metadata.annotations[{key}]")));
        assert_eq!(line.is_some(), said.is_some(), "{key}={value}: {all}");
        assert!(line.is_none_or(|line| line.contains(said.unwrap_or_default())), "{all}");
    }
    let mounted = support::read(json!({"metadata": {"annotations": {"gpu-fraction": "0.5"}}, "spec": {
        "containers": [{"name": "main"}],
        "volumes": [{"name": "x"}, {"name": "mps", "hostPath": {"path": "/tmp/nvidia-mps/"}}],
    }}));
    let all = warnings(&translated(&mounted));
    assert!(all.contains(&format!("spec.volumes[1].hostPath.path: {MPS}")), "{all}");
}

/// HAMi's chart lets an administrator choose the names. Findings name the field as the pod has it.
#[test]
fn names_that_the_cluster_chose_are_read_as_the_dialects_own() {
    let names = "nvidia.com/vgpu=nvidia.com/gpu,example.com/mem=nvidia.com/gpumem,example.com/prio=nvidia.com/priority";
    let settings = Settings {
        resource_names: vgpu_dialects::resource_names(names).unwrap(),
        ..Settings::default()
    };
    for (asked, expected) in [
        (
            "nvidia.com/vgpu=2 example.com/mem=3000 nvidia.com/gpucores=30",
            fraction(Dialect::Hami, 2, mebibytes(3000), 30),
        ),
        ("nvidia.com/vgpu=3", Request::whole(3, Dialect::Hami)),
        ("example.com/mem=3000", fraction(Dialect::Hami, 1, mebibytes(3000), 0)),
        // The dialect's own names are still read.
        ("nvidia.com/gpu=3", Request::whole(3, Dialect::Hami)),
    ] {
        let pod = limits(amounts(asked));
        let translation = with(&pod, &settings);
        assert_eq!(request(&translation), expected, "{asked}");
        let left = support::container(&translation.pod, "main").resources.clone().unwrap();
        assert_eq!(left.limits.unwrap_or_default(), [].into(), "{asked}");
        assert_eq!(support::patched(&pod, &translation.patch), translation.pod);
        assert!(
            !warnings(&translation).contains("is not read"),
            "{}",
            warnings(&translation)
        );
        // A second translation changes nothing, also if a second `kubectl apply` sends the limits again.
        assert_eq!(vgpu_dialects::translate(&translation.pod, &settings), Ok(None));
        let again = vgpu_dialects::update(&translation.pod, &pod, &settings)
            .unwrap()
            .unwrap();
        assert_eq!(again.pod, translation.pod);
    }
    let refusal = |asked: &str| {
        vgpu_dialects::translate(&limits(amounts(asked)), &settings)
            .unwrap_err()
            .to_string()
    };
    for (asked, said) in [
        (
            "nvidia.com/vgpu=1500m",
            "spec.containers[0].resources.limits[nvidia.com/vgpu]: Invalid value: \"1500m\"",
        ),
        (
            "nvidia.com/vgpu=1 nvidia.com/gpu=2",
            "limits[nvidia.com/vgpu]: Invalid value: \"1\": asks for the same as nvidia.com/gpu; remove one of them",
        ),
    ] {
        let refused = refusal(asked);
        assert!(refused.contains(said), "{refused}");
    }
    // The cluster did not choose this name, so it is not HAMi's.
    let unknown = limits(json!({"nvidia.com/vgpu": 1}));
    assert_eq!(vgpu_dialects::translate(&unknown, &Settings::default()), Ok(None));
}
