//! The command line. The CDI spec and the plugin write it; people see it in an error or with --help.

use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
vgpu-driver-limit: has NVIDIA's driver limit the GPU memory of a container's cgroup (an OCI createRuntime hook)

usage: vgpu-driver-limit set --claim FOLDER --records FOLDER [--required] NODE < STATE
       vgpu-driver-limit lift --claim FOLDER --records FOLDER --gpu UUID [--gpu UUID]... NODE < STATE
       vgpu-driver-limit check --records FOLDER NODE
       vgpu-driver-limit probe --gpu UUID [--gpu UUID]... NODE
       vgpu-driver-limit enter PID FILE [ARGUMENT]...
       vgpu-driver-limit --help | --version
  set                  limits the container's cgroup, on each GPU of the claim, to the claim's memory and a tolerance,
                       and the pod's cgroup to the sum of what was started in it; reads both back
  --claim FOLDER       the claim's directory, with a folder for each share and a file `limits` in it
  --records FOLDER     where the program keeps which shares were started in each pod
  --required           fail if the limit cannot be set; otherwise a file in the claim's directory says why
  STATE                the container's state, as the runtime passes it to hooks
  lift                 for a container whose claim has no limit: removes the pod's limit of the claim's GPUs, now and for
                       containers that start later. Never fails the container: a file in the claim's directory says why
                       the limit is still there
  check                compares the driver's limits of all containers that live with the records, and sets them again
                       where they differ. Removes the limit of a pod in which a container without a claim uses the GPU.
                       Prints a JSON object for each share: claim, share, gpu, cgroup, hard, used (bytes),
                       state (held, set-again, failed), reason, pod (held, lifted, failed, none)
  probe                makes a cgroup, limits it on each GPU and removes it. Prints a JSON object for each GPU: gpu,
                       driverLimit: who keeps limits, \"dmem\" (the kernel) or \"misc\" (the driver), or {\"none\": REASON}, or
                       {\"unknown\": REASON} if the driver does not answer. Fails with one line if it cannot ask for any
  --gpu UUID           a GPU of the claim; for probe, a GPU to ask
  enter                runs a program in the namespaces of mounts and of cgroups of a process: PID 1 for those of the
                       node. So the plugin runs probe and check where hooks run, with the node's loader
NODE: --nvml FILE [--soft-gpu FOLDER] [--cgroups FOLDER] [--proc FOLDER] [--hurry N]
  --nvml FILE          the driver's libnvidia-ml.so.1
  --soft-gpu FOLDER    the state of a software GPU, for its NVML
  --cgroups FOLDER     where the hierarchy of cgroups is mounted (default: /sys/fs/cgroup)
  --proc FOLDER        another /proc, for tests
  --hurry N            divides every wait by N, for tests
All paths are absolute and on the node. A driver that hangs is given up on after some seconds.
Exit status: 0; 1 with a line that says why not; 3 with such a line if the driver did not answer, or no process could be
made to ask it, so that nothing is known.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Set(Set),
    Lift(Lift),
    Check(Check),
    Probe(Probe),
    Enter(Enter),
    /// Answers this program's own questions to NVML (`serve`).
    Serve(Serve),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) claim: PathBuf,
    pub(crate) records: PathBuf,
    pub(crate) is_required: bool,
    pub(crate) node: Node,
}

/// A hook whose other arguments may not be readable.
pub(crate) struct Hook {
    pub(crate) claim: Option<PathBuf>,
    pub(crate) is_required: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lift {
    pub(crate) claim: PathBuf,
    pub(crate) records: PathBuf,
    /// UUIDs of the claim's GPUs. Such a claim may have no limits files.
    pub(crate) gpus: Vec<String>,
    pub(crate) node: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) records: PathBuf,
    pub(crate) node: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) nvml: PathBuf,
    pub(crate) soft_gpu: Option<PathBuf>,
    /// The folder that it has locked as long as it lives.
    pub(crate) alone: Option<PathBuf>,
    /// Its waits are divided by this.
    pub(crate) hurry: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// UUIDs of the GPUs to ask.
    pub(crate) gpus: Vec<String>,
    pub(crate) node: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Enter {
    pub(crate) pid: u32,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

/// Where driver, cgroups and processes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) nvml: PathBuf,
    pub(crate) soft_gpu: Option<PathBuf>,
    pub(crate) cgroups: PathBuf,
    pub(crate) proc: PathBuf,
    /// Waits are divided by this, at least 1.
    pub(crate) hurry: u32,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no command; use `set`, `lift`, `check`, `probe` or `enter` (see --help)")]
    NoCommand,
    #[error("{0:?} is not a command; use `set`, `lift`, `check`, `probe` or `enter` (see --help)")]
    UnknownCommand(OsString),
    #[error("{0:?} is not an option of this command (see --help)")]
    UnknownOption(OsString),
    #[error("{0} is given twice; give it once")]
    Repeated(&'static str),
    #[error("{0} has no value; write it as the next argument")]
    NoValue(&'static str),
    #[error("{0} is missing (see --help)")]
    Missing(&'static str),
    #[error("{0} {1:?} is not an absolute path; name one on the node")]
    Relative(&'static str, PathBuf),
    #[error("{0:?} is not {1}")]
    Value(OsString, &'static str),
}

const CLAIM: &str = "--claim";
const RECORDS: &str = "--records";
pub(crate) const NVML: &str = "--nvml";
pub(crate) const SOFT_GPU: &str = "--soft-gpu";
/// Option of `serve`: the folder that it locks.
pub(crate) const ALONE: &str = "--alone";
const CGROUPS: &str = "--cgroups";
const PROC: &str = "--proc";
pub(crate) const HURRY: &str = "--hurry";
const REQUIRED: &str = "--required";
/// May be given several times.
const GPU: &str = "--gpu";
/// The command by which the program starts itself.
pub(crate) const SERVE: &str = "serve";
/// Named in errors.
const FILE: &str = "FILE";
const PID: &str = "PID";

const OF_SET: [&str; 7] = [CLAIM, RECORDS, NVML, SOFT_GPU, CGROUPS, PROC, HURRY];
const OF_LIFT: [&str; 8] = [CLAIM, RECORDS, GPU, NVML, SOFT_GPU, CGROUPS, PROC, HURRY];
const OF_CHECK: [&str; 6] = [RECORDS, NVML, SOFT_GPU, CGROUPS, PROC, HURRY];
const OF_PROBE: [&str; 6] = [GPU, NVML, SOFT_GPU, CGROUPS, PROC, HURRY];
const OF_SERVE: [&str; 4] = [NVML, SOFT_GPU, ALONE, HURRY];

impl Command {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let command = arguments.next().ok_or(Error::NoCommand)?;
        let mut options = match command.to_str() {
            Some("-h" | "--help" | "help") => return Ok(Self::Help),
            Some("-V" | "--version") => return Ok(Self::Version),
            Some("set") => Options::read(arguments, &OF_SET, Some(REQUIRED))?,
            Some("lift") => Options::read(arguments, &OF_LIFT, None)?,
            Some("check") => Options::read(arguments, &OF_CHECK, None)?,
            Some("probe") => Options::read(arguments, &OF_PROBE, None)?,
            Some(SERVE) => Options::read(arguments, &OF_SERVE, None)?,
            Some("enter") => return Self::enter(arguments),
            _ => return Err(Error::UnknownCommand(command)),
        };
        if options.help {
            return Ok(Self::Help);
        }
        Ok(match command.to_str() {
            Some("set") => Self::Set(Set {
                claim: options.needed_path(CLAIM)?,
                records: options.needed_path(RECORDS)?,
                is_required: options.flag,
                node: options.node()?,
            }),
            Some("lift") => Self::Lift(Lift {
                claim: options.needed_path(CLAIM)?,
                records: options.needed_path(RECORDS)?,
                gpus: options.gpus()?,
                node: options.node()?,
            }),
            Some("check") => Self::Check(Check {
                records: options.needed_path(RECORDS)?,
                node: options.node()?,
            }),
            Some("probe") => Self::Probe(Probe {
                gpus: options.gpus()?,
                node: options.node()?,
            }),
            _ => Self::Serve(Serve {
                nvml: options.needed_path(NVML)?,
                soft_gpu: options.path(SOFT_GPU)?,
                alone: options.path(ALONE)?,
                hurry: options.hurry()?,
            }),
        })
    }

    /// Finds in a hook's arguments where it reports an error, and whether that may fail the container. It also finds them in
    /// arguments of another release, which `parse` refuses. None: they are not a hook's.
    pub(crate) fn hook(arguments: &[OsString]) -> Option<Hook> {
        let is_required = match arguments.first()?.to_str()? {
            "lift" => false,
            "set" => arguments.iter().any(|argument| argument == REQUIRED),
            _ => return None,
        };
        let claim = || {
            let at = arguments.iter().position(|argument| argument == CLAIM)?;
            let claim = PathBuf::from(arguments.get(at + 1)?);
            claim.is_absolute().then_some(claim)
        };
        Some(Hook {
            claim: claim(),
            is_required,
        })
    }

    fn enter(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let pid = arguments.next().ok_or(Error::Missing(PID))?;
        if pid == "-h" || pid == "--help" {
            return Ok(Self::Help);
        }
        let pid = pid
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or(Error::Value(pid, "a PID"))?;
        let program = PathBuf::from(arguments.next().ok_or(Error::Missing(FILE))?);
        if !program.is_absolute() {
            return Err(Error::Relative(FILE, program));
        }
        Ok(Self::Enter(Enter {
            pid,
            program,
            arguments: arguments.collect(),
        }))
    }
}

/// The options as they were given.
struct Options {
    values: Vec<(&'static str, OsString)>,
    flag: bool,
    help: bool,
}

impl Options {
    fn read(
        mut arguments: impl Iterator<Item = OsString>,
        known: &[&'static str],
        flag: Option<&str>,
    ) -> Result<Self, Error> {
        let mut options = Self {
            values: Vec::new(),
            flag: false,
            help: false,
        };
        while let Some(option) = arguments.next() {
            if option == "-h" || option == "--help" {
                options.help = true;
                return Ok(options);
            }
            if flag.is_some_and(|flag| option == flag) {
                options.flag = true;
                continue;
            }
            let name = known.iter().find(|name| option == **name);
            let name = *name.ok_or(Error::UnknownOption(option))?;
            let value = arguments.next().ok_or(Error::NoValue(name))?;
            if name != GPU && options.values.iter().any(|(given, _)| *given == name) {
                return Err(Error::Repeated(name));
            }
            options.values.push((name, value));
        }
        Ok(options)
    }

    fn take(&mut self, name: &'static str) -> Option<OsString> {
        let at = self.values.iter().position(|(given, _)| *given == name)?;
        Some(self.values.remove(at).1)
    }

    /// Returns the GPUs, at least one.
    fn gpus(&mut self) -> Result<Vec<String>, Error> {
        let mut gpus = Vec::new();
        while let Some(gpu) = self.take(GPU) {
            match gpu.to_str().filter(|text| is_uuid(text)) {
                Some(text) => gpus.push(text.to_owned()),
                None => return Err(Error::Value(gpu, "the UUID of a GPU")),
            }
        }
        match gpus.is_empty() {
            true => Err(Error::Missing(GPU)),
            false => Ok(gpus),
        }
    }

    fn path(&mut self, name: &'static str) -> Result<Option<PathBuf>, Error> {
        match self.take(name).map(PathBuf::from) {
            Some(path) if !path.is_absolute() => Err(Error::Relative(name, path)),
            path => Ok(path),
        }
    }

    fn needed_path(&mut self, name: &'static str) -> Result<PathBuf, Error> {
        self.path(name)?.ok_or(Error::Missing(name))
    }

    fn node(&mut self) -> Result<Node, Error> {
        Ok(Node {
            nvml: self.needed_path(NVML)?,
            soft_gpu: self.path(SOFT_GPU)?,
            cgroups: self.path(CGROUPS)?.unwrap_or_else(|| "/sys/fs/cgroup".into()),
            proc: self.path(PROC)?.unwrap_or_else(|| "/proc".into()),
            hurry: self.hurry()?,
        })
    }

    fn hurry(&mut self) -> Result<u32, Error> {
        let Some(given) = self.take(HURRY) else { return Ok(1) };
        let number = given.to_str().and_then(|text| text.parse().ok());
        number
            .filter(|number| *number > 0)
            .ok_or(Error::Value(given, "a whole number of at least 1"))
    }
}

/// A UUID is a word in a record and in a question to the driver.
fn is_uuid(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str) -> Result<Command, Error> {
        Command::parse(arguments.split_whitespace().map(OsString::from))
    }

    #[test]
    fn full_command_lines() {
        let node = || Node {
            nvml: "/n".into(),
            soft_gpu: None,
            cgroups: "/sys/fs/cgroup".into(),
            proc: "/proc".into(),
            hurry: 1,
        };
        let set = Set {
            claim: "/c".into(),
            records: "/r".into(),
            is_required: false,
            node: node(),
        };
        assert_eq!(parse("set --claim /c --records /r --nvml /n"), Ok(Command::Set(set)));
        let all = Node {
            nvml: "/n".into(),
            soft_gpu: Some("/s".into()),
            cgroups: "/g".into(),
            proc: "/p".into(),
            hurry: 5,
        };
        let set = Set {
            claim: "/c".into(),
            records: "/r".into(),
            is_required: true,
            node: all,
        };
        let line = "set --required --proc /p --hurry 5 --cgroups /g --soft-gpu /s --nvml /n --records /r --claim /c";
        assert_eq!(parse(line), Ok(Command::Set(set)));
        let probe = Probe {
            gpus: vec!["GPU-1".into(), "GPU-2".into()],
            node: node(),
        };
        assert_eq!(
            parse("probe --gpu GPU-1 --nvml /n --gpu GPU-2"),
            Ok(Command::Probe(probe))
        );
        let lift = Lift {
            claim: "/c".into(),
            records: "/r".into(),
            gpus: vec!["GPU-1".into(), "GPU-2".into()],
            node: node(),
        };
        let line = "lift --claim /c --records /r --gpu GPU-1 --nvml /n --gpu GPU-2";
        assert_eq!(parse(line), Ok(Command::Lift(lift)));
        let check = Check {
            records: "/r".into(),
            node: node(),
        };
        assert_eq!(parse("check --records /r --nvml /n"), Ok(Command::Check(check)));
        let serve = Serve {
            nvml: "/n".into(),
            soft_gpu: Some("/s".into()),
            alone: Some("/g".into()),
            hurry: 5,
        };
        assert_eq!(
            parse("serve --nvml /n --soft-gpu /s --hurry 5 --alone /g"),
            Ok(Command::Serve(serve))
        );
        let enter = Enter {
            pid: 1,
            program: "/p".into(),
            arguments: vec!["probe".into(), "--help".into()],
        };
        assert_eq!(parse("enter 1 /p probe --help"), Ok(Command::Enter(enter)));
        assert_eq!(parse("--version"), Ok(Command::Version));
        assert_eq!(parse("set --help"), Ok(Command::Help));
        let options = OF_LIFT.iter().chain([&REQUIRED]);
        assert!(options.into_iter().all(|option| HELP.contains(option)));
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(parse(""), Err(Error::NoCommand));
        assert_eq!(parse("get"), Err(Error::UnknownCommand("get".into())));
        assert_eq!(parse("set --claims /c"), Err(Error::UnknownOption("--claims".into())));
        assert_eq!(parse("set --gpu G"), Err(Error::UnknownOption("--gpu".into())));
        assert_eq!(
            parse("probe --required"),
            Err(Error::UnknownOption("--required".into()))
        );
        assert_eq!(parse("set --claim"), Err(Error::NoValue(CLAIM)));
        assert_eq!(parse("set --claim c"), Err(Error::Relative(CLAIM, "c".into())));
        assert_eq!(parse("set --claim /a --claim /b"), Err(Error::Repeated(CLAIM)));
        assert_eq!(parse("set --records /r --nvml /n"), Err(Error::Missing(CLAIM)));
        assert_eq!(parse("set --claim /c --nvml /n"), Err(Error::Missing(RECORDS)));
        assert_eq!(parse("set --claim /c --records /r"), Err(Error::Missing(NVML)));
        assert_eq!(parse("probe --nvml /n"), Err(Error::Missing(GPU)));
        let lift = "lift --claim /c --records /r --nvml /n";
        assert_eq!(parse(lift), Err(Error::Missing(GPU)));
        let long = "G".repeat(129);
        let uuid = |text: &str| Err(Error::Value(text.into(), "the UUID of a GPU"));
        assert_eq!(parse(&format!("{lift} --gpu {long}")), uuid(&long));
        assert_eq!(
            parse(&format!("{lift} --required --gpu GPU-1")),
            Err(Error::UnknownOption("--required".into()))
        );
        assert_eq!(parse("check --nvml /n"), Err(Error::Missing(RECORDS)));
        for hurry in ["0", "-1", "fast"] {
            let wrong = Err(Error::Value(hurry.into(), "a whole number of at least 1"));
            assert_eq!(parse(&format!("check --records /r --nvml /n --hurry {hurry}")), wrong);
        }
        assert_eq!(parse("enter"), Err(Error::Missing(PID)));
        assert_eq!(parse("enter self /p"), Err(Error::Value("self".into(), "a PID")));
        assert_eq!(parse("enter 1"), Err(Error::Missing(FILE)));
        assert_eq!(parse("enter 1 p"), Err(Error::Relative(FILE, "p".into())));
    }
}
