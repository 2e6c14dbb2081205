//! The rows of the table: the ways of loading libcuda and NVML.

use crate::stage::Stage;
use std::path::{Path, PathBuf};
use vgpu_loading::place::{Form, Place};
use vgpu_loading::{example, python};

/// A way of reaching libcuda and NVML.
pub(crate) struct Way {
    pub(crate) title: &'static str,
    /// Why the limit is not enforced, if it is not.
    pub(crate) why: &'static str,
    pub(crate) program: PathBuf,
    /// Arguments before the order: HOW for the C client, a script for an interpreter.
    pub(crate) before: Vec<String>,
    pub(crate) cuda: String,
    pub(crate) nvml: String,
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Way {
    fn why(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.environment.push((name, value));
        self
    }

    fn by(self, program: PathBuf, before: &[String]) -> Self {
        Self {
            program,
            before: before.to_vec(),
            ..self
        }
    }

    fn opens(self, folder: &Path, cuda: &str, nvml: &str) -> Self {
        let text = |name: &str| folder.join(name).display().to_string();
        Self {
            cuda: text(cuda),
            nvml: text(nvml),
            ..self
        }
    }
}

pub(crate) fn ways(stage: &Stage, place: &Place, purego: Option<&Path>) -> Vec<Way> {
    let way = |title, program: &str, how: &str| Way {
        title,
        why: "",
        program: stage.path(program),
        before: vec![how.to_owned()],
        cuda: "libcuda.so.1".into(),
        nvml: "libnvidia-ml.so.1".into(),
        environment: Vec::new(),
    };
    let client = |title, how| way(title, "client", how);
    let linked = |title, program| way(title, program, "linked");
    let plugin = |title, file| way(title, "host", "").by(stage.path("host"), &[stage.text(file), "linked".into()]);
    let inside =
        |title, file, how: &str| way(title, "", "").by(stage.path("host-newlm"), &[stage.text(file), how.into()]);
    let (compat, search) = (stage.path("compat"), stage.text("compat"));
    let (cuda, nvml) = ("libcuda.so.1", "libnvidia-ml.so.1");
    let real = place.form.driver().display().to_string();
    let preload = format!(
        "{}:{}",
        stage.text("compat/libcuda.so.1"),
        stage.text("compat/libnvidia-ml.so.1")
    );
    let state = match place.form {
        Form::Container => "/run/soft-gpu".into(),
        Form::User => place.share.state().display().to_string(),
    };
    let cleared = [
        "-i".into(),
        format!("SOFT_GPU_STATE={state}"),
        stage.text("client"),
        "dlopen".into(),
    ];
    let ctypes = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/ctypes_client.py");
    let mut ways = vec![
        linked("linked with it (`DT_NEEDED`)", "linked"),
        linked("linked with it, all bound at the start", "linked-now"),
        plugin("a plugin that is linked with it", "plugin.so"),
        client("`dlopen` by name, `dlsym`", "dlopen"),
        client("`dlopen` of `libcuda.so`, without a version", "dlopen").opens(Path::new(""), "libcuda.so", nvml),
        client("`dlopen` into the global scope, `dlsym(RTLD_DEFAULT)`", "global"),
        client("`dlopen` with `RTLD_DEEPBIND`", "deepbind"),
        client("`dlmopen` into a new namespace", "dlmopen"),
        client("`cuGetProcAddress` for everything", "proc"),
        client("libc's own `dlsym`, got through `dlvsym`", "libc-dlsym"),
        client("libc's own `dlopen` and `dlsym`, got through `dlsym`", "libc-both"),
        client("from a thread with a stack of its own", "thread"),
        way("Python's `ctypes`", "", "").by(python(), &[ctypes.display().to_string()]),
        way("Rust's `libloading`", "", "").by(example("libloading_client"), &[]),
        client("by the path of the loader's folder", "dlopen").opens(&place.names(), cuda, nvml),
        client("by the path of the driver's own file", "dlopen").opens(&place.form.driver(), cuda, nvml),
        client("an image's driver by path", "dlopen").opens(&compat, cuda, nvml),
        client("an image's driver by path, under another file name", "dlopen")
            .opens(&compat, "renamed-cuda.so", "renamed-nvml.so"),
        client("an image's driver by path, into the global scope, `dlsym(RTLD_DEFAULT)`", "global")
            .opens(&compat, cuda, nvml),
        client("an image's driver by path, with `dlmopen`", "dlmopen").opens(&compat, cuda, nvml),
        client("an image's driver by path, with libc's own `dlopen` and `dlsym`", "libc-both")
            .opens(&compat, cuda, nvml),
        client("by name, `LD_LIBRARY_PATH` leads to an image's driver", "dlopen")
            .with("LD_LIBRARY_PATH", search.clone()),
        way("by name, `DT_RPATH` leads to an image's driver", "rpath", "dlopen"),
        way("by name, `DT_RUNPATH` leads to an image's driver", "runpath", "dlopen"),
        linked("linked, `LD_LIBRARY_PATH` leads to an image's driver", "linked")
            .with("LD_LIBRARY_PATH", search.clone()),
        linked("linked, `DT_RPATH` leads to an image's driver", "linked-rpath"),
        linked("linked, `DT_RUNPATH` leads to an image's driver", "linked-runpath"),
        plugin("a linked plugin whose `DT_RPATH` leads to an image's driver", "plugin-rpath.so"),
        linked("linked, `LD_LIBRARY_PATH` leads to the real driver's folder", "linked")
            .with("LD_LIBRARY_PATH", real.clone()),
        client("by name, `LD_LIBRARY_PATH` leads to the real driver's folder", "dlopen").with("LD_LIBRARY_PATH", real),
        linked("linked, `LD_PRELOAD` of an image's driver", "linked").with("LD_PRELOAD", preload.clone()),
        linked("linked, all bound at the start, `LD_PRELOAD` of an image's driver", "linked-now")
            .with("LD_PRELOAD", preload.clone()),
        way("linked, `ld.so --library-path` leads to an image's driver", "", "").by(
            vgpu_abi::arch!(loader).into(),
            &["--library-path".into(), search, stage.text("linked"), "linked".into()],
        ),
        client("`dlsym(RTLD_DEFAULT)`, `LD_PRELOAD` of an image's driver", "default")
            .with("LD_PRELOAD", preload.clone()),
        client("`dlsym(RTLD_NEXT)`, `LD_PRELOAD` of an image's driver", "next").with("LD_PRELOAD", preload.clone()),
        client("`dlsym` in `dlopen(NULL)`, `LD_PRELOAD` of an image's driver", "program").with("LD_PRELOAD", preload),
        way("`dlsym(RTLD_DEFAULT)`, linked, `DT_RPATH` leads to an image's driver", "needs-rpath", "default"),
        way("`dlsym(RTLD_NEXT)`, linked, `DT_RPATH` leads to an image's driver", "needs-rpath", "next"),
        way("`dlsym` in `dlopen(NULL)`, linked, `DT_RPATH` leads to an image's driver", "needs-rpath", "program"),
        client("`dlsym` in a library that is linked with an image's driver", "dlopen")
            .opens(stage.folder(), "wrapper.so", "wrapper.so"),
        client("an image's driver under another file name, into the global scope, `dlsym(RTLD_DEFAULT)`", "global")
            .opens(&compat, "renamed-cuda.so", "renamed-nvml.so"),
        way("a library that poses as a driver opens the driver's own file", "", "")
            .by(stage.path("host"), &[stage.text("plugin-poses.so"), "dlopen".into()])
            .opens(&place.form.driver(), cuda, nvml),
        inside("a plugin in a namespace of its own, linked", "plugin.so", "linked"),
        inside(
            "a plugin in a namespace of its own, linked, `DT_RPATH` leads to an image's driver",
            "plugin-rpath.so",
            "linked",
        ),
        inside("a plugin in a namespace of its own opens an image's driver by path", "plugin-alone.so", "dlopen")
            .opens(&compat, cuda, nvml),
        inside(
            "a plugin in a namespace of its own opens an image's driver under another file name",
            "plugin-alone.so",
            "dlopen",
        )
            .opens(&compat, "renamed-cuda.so", "renamed-nvml.so"),
        way("a static program with `dlopen`", "static", "dlopen").why(
            "glibc gives a static program no thread-local storage of what it loads, which stops it; a driver that needs none, opened by an image's path, only the node's watchdog would catch",
        ),
        way("an image's driver by path, with a cleared environment", "", "")
            .by("/usr/bin/env".into(), &cleared)
            .opens(&compat, cuda, nvml)
            .why("`vgpu run` of an ordinary user has nothing but the environment"),
    ];
    if let Some(purego) = purego {
        ways.push(way("Go's purego, without cgo", "", "").by(purego.to_owned(), &[]));
    }
    ways
}
