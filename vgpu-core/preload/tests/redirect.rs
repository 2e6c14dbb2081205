//! Programs that ask for a driver library get the shim.

mod kit;

use kit::{Stage, answer, artefact};

/// Shows why this library exists: without it each of these programs gets the driver.
#[test]
fn without_the_library_paths_lead_to_the_driver() {
    let stage = Stage::new();
    assert_eq!(
        answer(stage.bare("probe").args(["open", &stage.text("real/libcuda.so.1")])),
        "2"
    );
}

#[test]
fn any_path_of_a_driver_library_leads_to_the_shim() {
    let stage = Stage::new();
    for path in ["libcuda.so.1", "libcuda.so.535.104.05", "libnvidia-ml.so.1"] {
        assert_eq!(
            stage.ask(&["open", &stage.text(&format!("real/{path}"))]),
            "1",
            "{path}"
        );
        assert_eq!(
            stage.ask(&["mopen", &stage.text(&format!("real/{path}"))]),
            "1",
            "{path}, dlmopen"
        );
    }
    assert_eq!(stage.ask(&["open", "./real/libcuda.so.1"]), "1", "relative");
    assert_eq!(stage.ask(&["open", "libcuda.so.1"]), "1", "bare");
    assert_eq!(stage.ask(&["open", "libcuda.so"]), "1", "without a version");
    assert_eq!(stage.ask(&["open", "/nowhere/compat/libcuda.so.1"]), "1", "missing");
}

#[test]
fn other_libraries_open_as_asked() {
    let stage = Stage::new();
    assert_eq!(stage.ask(&["open", &stage.text("real/libcudart.so.12")]), "2");
    assert_eq!(
        stage.ask(&["error", "libnothing-of-this-name.so"]),
        answer(stage.bare("probe").args(["error", "libnothing-of-this-name.so"]))
    );
}

/// Without a shim, the program gets the driver that it asked for.
#[test]
fn without_a_shim_the_driver_opens_as_asked() {
    let stage = Stage::new();
    let mut probe = stage.guarded("probe");
    probe.env_remove("LD_LIBRARY_PATH");
    assert_eq!(answer(probe.args(["open", &stage.text("real/libcuda.so.1")])), "2");
    let mut probe = stage.guarded("probe");
    probe.env("LD_LIBRARY_PATH", stage.path("real"));
    assert_eq!(
        answer(probe.args(["open", "libcuda.so.1"])),
        "2",
        "a driver by the shim's name is no shim"
    );
}

#[test]
fn an_rpath_of_the_caller_does_not_come_between() {
    let stage = Stage::new();
    for tags in ["-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"] {
        let rpath = format!("-Wl,-rpath,{}", stage.text("real"));
        stage.cc("plugin.c", "lib/plugin.so", ["-shared", "-fPIC", tags, &rpath, "-ldl"]);
        let plugin = stage.text("lib/plugin.so");
        assert_eq!(stage.ask(&["plugin", &plugin, "libcuda.so.1"]), "opened 1", "{tags}");
    }
}

/// A DT_RPATH of the program itself comes before LD_LIBRARY_PATH in every search. With the shim beside
/// the preloaded library there is no search.
#[test]
fn an_rpath_of_the_program_wins_unless_the_shim_lies_beside() {
    let stage = Stage::new();
    let rpath = format!("-Wl,-rpath,{}", stage.text("real"));
    stage.cc(
        "probe.c",
        "probe",
        ["-pthread", "-DLIBDL=\"\"", "-Wl,--disable-new-dtags", &rpath, "-ldl"],
    );
    std::fs::hard_link(stage.path("real/libcuda.so.1"), stage.path("real/libcuda.so")).expect("a link");
    assert_eq!(stage.ask(&["open", "libcuda.so.1"]), "2");

    std::fs::copy(artefact(), stage.path("shim/libvgpu-preload.so")).expect("a copy");
    let mut probe = stage.guarded("probe");
    probe.env("LD_PRELOAD", stage.path("shim/libvgpu-preload.so"));
    assert_eq!(answer(probe.args(["open", "libcuda.so.1"])), "1");
}

#[test]
fn asking_whether_it_is_loaded_does_not_load_it() {
    let stage = Stage::new();
    assert_eq!(stage.ask(&["noload", &stage.text("real/libcuda.so.1")]), "null null");
}

/// If the shim got itself, its first call would recurse without end.
#[test]
fn the_shim_itself_gets_the_driver() {
    let stage = Stage::new();
    let real = stage.text("real/libcuda.so.1");
    assert_eq!(stage.ask(&["shim", "libcuda.so.1", &real]), "2");
    assert_eq!(stage.ask(&["shim", &real, &real]), "2");
}

/// A driver library that was opened without us still answers with the shim's functions, for dlsym and dlvsym. Functions
/// that the shim does not have stay the driver's.
#[test]
fn look_ups_in_a_driver_that_was_reached_past_us() {
    let stage = Stage::new();
    let real = stage.text("real/libcuda.so.1");
    assert_eq!(stage.ask(&["past", &real, "cuInit"]), "1 1");
    assert_eq!(stage.ask(&["past", &real, "cuNewer"]), "2 2");
    assert_eq!(
        stage.ask(&["past", &stage.text("real/libcudart.so.12"), "cuInit"]),
        "2 2",
        "not a driver library"
    );
    assert_eq!(stage.ask(&["missing", &real, "cuNothing"]), "null named");
}

/// libc's own four functions, looked up in libc's handle, are ours. libc's other functions stay its own.
#[test]
fn libcs_own_functions_are_ours() {
    let stage = Stage::new();
    let ours = artefact().display().to_string();
    let version = answer(stage.bare("probe").args(["own", "dlsym", "GLIBC_2.34"]));
    let version = if version == "none none" {
        "GLIBC_2.2.5"
    } else {
        "GLIBC_2.34"
    };
    for name in ["dlopen", "dlmopen", "dlsym", "dlvsym"] {
        assert_eq!(stage.ask(&["own", name, version]), format!("{ours} {ours}"), "{name}");
        assert_eq!(
            stage.ask(&["own", name, "GLIBC_9.9"]),
            "none none",
            "{name} of another version"
        );
    }
    let libc = stage.ask(&["own", "dlclose", version]);
    assert!(libc.contains("libc.so") || libc.contains("libdl"), "{libc}");
}

/// Programs and plugins that are linked with a driver and find it by their RPATH: bound lazily and at once.
#[test]
fn calls_that_the_loader_bound_to_a_driver_lead_to_the_shim() {
    let stage = Stage::new();
    let rpath = format!("-Wl,-rpath,{}", stage.text("real"));
    let folder = format!("-L{}", stage.text("real"));
    let linked = [
        "-Wl,--no-as-needed",
        "-Wl,--disable-new-dtags",
        &rpath,
        &folder,
        "-l:libcuda.so.1",
        "-ldl",
    ];
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"] {
        stage.cc("linked.c", "linked", linked.iter().chain(&[binding]));
        assert_eq!(answer(&mut stage.bare("linked")), "2 2 2", "{binding}: without us");
        // Functions that the shim does not export stay the driver's.
        assert_eq!(answer(&mut stage.guarded("linked")), "1 1 2", "{binding}");
        stage.cc(
            "linked.c",
            "lib/linked.so",
            linked.iter().chain(&[binding, "-shared", "-fPIC"]),
        );
        assert_eq!(
            stage.ask(&["linked", &stage.text("lib/linked.so")]),
            "1 1 2",
            "{binding}: a plugin"
        );
    }
}

/// Another library's function of the same name comes before the driver's in the search order. It must still be found
/// first.
#[test]
fn an_interposer_before_the_driver_keeps_its_place() {
    let stage = Stage::new();
    let (rpath, folder) = (
        format!("-Wl,-rpath,{}", stage.text("real")),
        format!("-L{}", stage.text("real")),
    );
    stage.cc(
        "driver.c",
        "real/libtracer.so",
        ["-shared", "-fPIC", "-DWHO=3", "-DPART"],
    );
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"] {
        let linked = [
            "-Wl,--no-as-needed",
            "-Wl,--disable-new-dtags",
            &rpath,
            &folder,
            binding,
        ];
        stage.cc(
            "linked.c",
            "linked",
            linked.iter().chain(&["-l:libtracer.so", "-l:libcuda.so.1", "-ldl"]),
        );
        assert_eq!(answer(&mut stage.guarded("linked")), "3 3 2", "{binding}");
    }
}

#[test]
fn threads_open_and_close_at_once() {
    let stage = Stage::new();
    for _ in 0..5 {
        assert_eq!(
            stage.ask(&[
                "threads",
                &stage.text("real/libcuda.so.1"),
                &stage.text("real/libcudart.so.12")
            ]),
            "0"
        );
    }
}

/// The arguments that link with the stand-in driver and find it by DT_RPATH.
fn linked(stage: &Stage) -> [String; 6] {
    [
        "-Wl,--no-as-needed".into(),
        "-Wl,--disable-new-dtags".into(),
        format!("-Wl,-rpath,{}", stage.text("real")),
        format!("-L{}", stage.text("real")),
        "-l:libcuda.so.1".into(),
        "-ldl".into(),
    ]
}

/// Only the address that was found decides. The kind of look-up and how the driver got into the scope do not matter.
#[test]
fn look_ups_in_a_scope_that_has_a_driver() {
    let stage = Stage::new();
    let probe = ["-pthread", "-DLIBDL=\"libc.so.6\""].map(str::to_owned);
    stage.cc("probe.c", "needs", probe.iter().chain(&linked(&stage)));
    let plugin = ["-shared", "-fPIC"].map(str::to_owned);
    stage.cc("plugin.c", "lib/wrapper.so", plugin.iter().chain(&linked(&stage)));
    let (odd, wrapper) = (stage.text("real/odd.so"), stage.text("lib/wrapper.so"));
    let ours = artefact().display().to_string();
    let both = [format!("{ours}:{odd}"), format!("{odd}:{ours}")];
    for how in ["default", "next", "program"] {
        let ask = |program: &str, preload: &str, more: &[&str]| {
            let mut command = stage.bare(program);
            answer(command.env("LD_PRELOAD", preload).args(["scope", how]).args(more))
        };
        assert_eq!(ask("probe", &odd, &[]), "2 2", "{how}: without us");
        for preload in &both {
            assert_eq!(ask("probe", preload, &[]), "1 1", "{how}: {preload}");
        }
        assert_eq!(ask("needs", &ours, &[]), "1 1", "{how}: a program with a DT_RPATH");
        if how != "next" {
            assert_eq!(ask("probe", &ours, &[&odd]), "1 1", "{how}: RTLD_GLOBAL");
        }
        let error = ask("probe", &ours, &[]);
        assert_eq!(error, "-1 -1", "{how}: no driver is in scope");
    }
    assert_eq!(stage.ask(&["scope", &wrapper]), "1 1", "what it is linked with");
    assert_eq!(stage.ask(&["scope", &odd]), "1 1", "a driver by its code");
    // The plugin's own scope has the driver; the program's scope does not.
    for how in ["default", "next"] {
        let bare = answer(stage.bare("probe").args(["plugin", &wrapper, how]));
        assert_eq!(bare, "2 2", "{how}: without us");
        assert_eq!(stage.ask(&["plugin", &wrapper, how]), "1 1", "{how} of a plugin");
    }
}

/// A path in the shim's spelling opens the named file. Neither that file nor the caller gets any rights by this.
#[test]
fn the_shims_spelling_of_a_path_opens_no_functions() {
    let stage = Stage::new();
    let real = format!("//{}", stage.text("real/libcuda.so.1"));
    assert_eq!(stage.ask(&["scope", &real]), "1 1");
    assert_eq!(stage.ask(&["scope", "default", &real]), "1 1");
    let linked = linked(&stage);
    let shared = ["-shared", "-fPIC"].map(str::to_owned);
    stage.cc("plugin.c", "lib/plugin.so", shared.iter().chain(&linked));
    let plugin = format!("//{}", stage.text("lib/plugin.so"));
    assert_eq!(stage.ask(&["plugin", &plugin, "default"]), "1 1");
}

/// Neither a DT_SONAME nor a single function makes a library a driver.
#[test]
fn a_library_that_is_called_like_a_driver_is_none() {
    let stage = Stage::new();
    stage.cc(
        "driver.c",
        "lib/own.so",
        ["-shared", "-fPIC", "-DWHO=3", "-DPART", "-Wl,-soname,libcuda.so.7"],
    );
    let own = stage.text("lib/own.so");
    assert_eq!(stage.ask(&["scope", &own]), "3 3");
    assert_eq!(stage.ask(&["scope", "default", &own]), "3 3");
}

/// An interposer that is first in the scope keeps its place, and finds the shim behind itself.
#[test]
fn a_tracer_in_the_scope_keeps_its_place() {
    let stage = Stage::new();
    stage.cc("driver.c", "lib/tracer.so", ["-shared", "-fPIC", "-DWHO=3", "-DPART"]);
    let (ours, odd) = (artefact().display().to_string(), stage.text("real/odd.so"));
    let preload = format!("{ours}:{}:{odd}", stage.text("lib/tracer.so"));
    let mut probe = stage.bare("probe");
    assert_eq!(
        answer(probe.env("LD_PRELOAD", preload).args(["scope", "default"])),
        "3 3"
    );
}

/// Calls of a library that names no driver are bound to one in the global scope.
#[test]
fn calls_that_are_bound_to_a_driver_of_the_global_scope_lead_to_the_shim() {
    let stage = Stage::new();
    let odd = stage.text("real/odd.so");
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"] {
        stage.cc("linked.c", "lib/linked.so", ["-shared", "-fPIC", binding]);
        let plugin = stage.text("lib/linked.so");
        let bare = answer(stage.bare("probe").args(["linked", &plugin, &odd]));
        assert_eq!(bare, "2 2 2", "{binding}: without us");
        assert_eq!(stage.ask(&["linked", &plugin, &odd]), "1 1 2", "{binding}");
        let mut probe = stage.guarded("probe");
        probe.env("LD_PRELOAD", format!("{odd}:{}", artefact().display()));
        assert_eq!(
            answer(probe.args(["linked", &plugin])),
            "1 1 2",
            "{binding}: LD_PRELOAD"
        );
    }
}

/// Exporting a driver's or the shim's functions gives a library no access to the driver: like any other, it gets the
/// shim.
#[test]
fn a_library_that_poses_as_a_driver_or_as_the_shim_gets_no_driver() {
    let stage = Stage::new();
    let linked = linked(&stage);
    let shared = ["-shared", "-fPIC"].map(str::to_owned);
    for poses in ["-DPOSES=1", "-DPOSES=2"].map(str::to_owned) {
        stage.cc("plugin.c", "lib/poser.so", shared.iter().chain(&linked).chain([&poses]));
        let poser = stage.text("lib/poser.so");
        let bare = |how: &str| answer(stage.bare("probe").args(["plugin", &poser, how]));
        let real = stage.text("real/libcuda.so.1");
        for (how, without, with) in [
            (real.as_str(), "opened 2", "opened 1"),
            ("next", "2 2", "1 1"),
            ("bound", "2", "1"),
        ] {
            assert_eq!(bare(how), without, "{poses} {how}: without us");
            assert_eq!(stage.ask(&["plugin", &poser, how]), with, "{poses} {how}");
            // It is not taken for the shim either when it is loaded at the start, where the shim is found by a search.
            let mut probe = stage.guarded("probe");
            let probe = probe.args(["plugin", &poser, how]);
            let preload = format!("{}:{poser}", artefact().display());
            assert_eq!(
                answer(probe.env("LD_PRELOAD", preload)),
                with,
                "{poses} {how}: at the start"
            );
        }
    }
}

/// A driver that has the shim's functions too is a driver: its callers get the shim.
#[test]
fn a_driver_with_the_shims_exports_is_not_the_shim() {
    let stage = Stage::new();
    stage.cc(
        "driver.c",
        "real/odd.so",
        ["-shared", "-fPIC", "-DWHO=2", "-DIMITATES", "-Wl,-Bsymbolic"],
    );
    let odd = stage.text("real/odd.so");
    assert_eq!(answer(stage.bare("probe").args(["scope", &odd])), "2 2", "without us");
    assert_eq!(stage.ask(&["scope", &odd]), "1 1");
}

/// The driver that the shim uses finds its own functions, and so does the copy of the shim in another namespace.
#[test]
fn the_shims_driver_finds_itself() {
    let stage = Stage::new();
    stage.cc(
        "driver.c",
        "lib/libcuda.so.1",
        ["-shared", "-fPIC", "-DWHO=2", "-DFINDS", "-ldl"],
    );
    let real = stage.text("lib/libcuda.so.1");
    assert_eq!(stage.ask(&["itself", "libcuda.so.1", &real]), "2");
    assert_eq!(
        stage.ask(&["itself", "libcuda.so.1", &real, "new"]),
        "2",
        "another namespace"
    );
}
