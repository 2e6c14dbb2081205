//! What this machine must have, checked first: what is missing is installed where that is possible, else named in one
//! line.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Something needed: how to see whether it is there, and the package that brings it.
struct Need {
    what: &'static str,
    package: &'static str,
    there: fn() -> bool,
    /// Without it there is another way.
    optional: bool,
}

const NEEDS: [Need; 8] = [
    Need {
        what: "ip",
        package: "iproute2",
        there: || on_path("ip"),
        optional: false,
    },
    Need {
        what: "unshare and nsenter",
        package: "util-linux",
        there: || on_path("unshare") && on_path("nsenter"),
        optional: false,
    },
    Need {
        what: "dpkg-deb",
        package: "dpkg",
        there: || on_path("dpkg-deb"),
        optional: false,
    },
    Need {
        what: "a C compiler",
        package: "gcc",
        there: || on_path("cc") || on_path("gcc"),
        optional: false,
    },
    Need {
        what: "a static C library",
        package: "libc6-dev",
        there: static_libc,
        optional: false,
    },
    Need {
        what: "pip for python3",
        package: "python3-pip",
        there: pip,
        optional: false,
    },
    Need {
        what: "pkg-config",
        package: "pkg-config",
        there: || on_path("pkg-config"),
        optional: true,
    },
    Need {
        what: "libseccomp's headers",
        package: "libseccomp-dev",
        there: seccomp,
        optional: true,
    },
];

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(system)
        .any(|folder| folder.join(program).is_file())
}

fn static_libc() -> bool {
    [
        "/usr/lib/x86_64-linux-gnu/libc.a",
        "/usr/lib64/libc.a",
        "/usr/lib/libc.a",
    ]
    .iter()
    .any(|file| Path::new(file).exists())
}

fn pip() -> bool {
    shell::run(&mut shell::command("python3", ["-m", "pip", "--version"])).is_ok()
}

fn seccomp() -> bool {
    shell::run(&mut shell::command("pkg-config", ["--exists", "libseccomp"])).is_ok()
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks this machine, and installs what it lacks.
pub fn prepare(say: &mut dyn FnMut(&str)) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "this machine is {}: the cluster runs on x86_64 alone so far",
            std::env::consts::ARCH
        );
    }
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    say(&format!("installing {}", packages.join(", ")));
    let installed = install(&packages);
    let still: Vec<&Need> = missing
        .into_iter()
        .filter(|need| !need.optional && !(need.there)())
        .collect();
    if still.is_empty() {
        return Ok(());
    }
    let whats: Vec<&str> = still.iter().map(|need| need.what).collect();
    let packages: Vec<&str> = still.iter().map(|need| need.package).collect();
    installed.with_context(|| format!("{} missing: install {}", whats.join(", "), packages.join(" ")))?;
    bail!(
        "{} missing, also after installing {}",
        whats.join(", "),
        packages.join(" ")
    )
}

fn install(packages: &[&str]) -> Result<()> {
    if !on_path("apt-get") {
        bail!("this machine has no apt-get");
    }
    let apt = |arguments: &[&str]| {
        let (program, first): (&str, &[&str]) = if is_root() {
            ("apt-get", &[])
        } else {
            ("sudo", &["apt-get"])
        };
        let mut command = shell::command(program, first);
        command
            .args(["-qq", "-y", "--no-install-recommends"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        shell::run(&mut command)
    };
    let install: Vec<&str> = ["install"].into_iter().chain(packages.iter().copied()).collect();
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}
