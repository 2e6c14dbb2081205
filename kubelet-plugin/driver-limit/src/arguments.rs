//! The command line. The CDI spec and the plugin write it; people see it in an error or with --help.

use std::{ffi::OsString, path::PathBuf};

pub(crate) const HELP: &str = "\
vgpu-driver-limit: has NVIDIA's driver limit the GPU memory of a container's cgroup (an OCI createRuntime hook)

usage: vgpu-driver-limit set --claim FOLDER --records FOLDER [--required] NODE < STATE
       vgpu-driver-limit probe --gpu UUID NODE
       vgpu-driver-limit enter PID FILE [ARGUMENT]...
       vgpu-driver-limit --help | --version
  set                  limits the container's cgroup, on each GPU of the claim, to the claim's memory and a tolerance,
                       and the pod's cgroup to the sum of what was started in it; reads both back
  --claim FOLDER       the claim's directory, with a folder for each share and a file `limits` in it
  --records FOLDER     where the program keeps which shares were started in each pod
  --required           fail if the limit cannot be set; otherwise a file in the claim's directory says why
  STATE                the container's state, as the runtime passes it to hooks
  probe                makes a cgroup, limits it and removes it; prints who keeps limits: dmem (the kernel) or misc (the
                       driver). Fails with one line if the driver limits no cgroups here
  --gpu UUID           the GPU to ask
  enter                runs a program in the namespaces of mounts and of cgroups of a process: PID 1 for those of the
                       node. So the plugin runs the probe where hooks run, with the node's loader
NODE: --nvml FILE [--soft-gpu FOLDER] [--cgroups FOLDER] [--proc FOLDER]
  --nvml FILE          the driver's libnvidia-ml.so.1
  --soft-gpu FOLDER    the state of a software GPU, for its NVML
  --cgroups FOLDER     where the hierarchy of cgroups is mounted (default: /sys/fs/cgroup)
  --proc FOLDER        another /proc, for tests
All paths are absolute and on the node.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Set(Set),
    Probe(Probe),
    Enter(Enter),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) claim: PathBuf,
    pub(crate) records: PathBuf,
    pub(crate) is_required: bool,
    pub(crate) node: Node,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// UUID of a GPU.
    pub(crate) gpu: String,
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
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no command; use `set`, `probe` or `enter` (see --help)")]
    NoCommand,
    #[error("{0:?} is not a command; use `set`, `probe` or `enter` (see --help)")]
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
const NVML: &str = "--nvml";
const SOFT_GPU: &str = "--soft-gpu";
const CGROUPS: &str = "--cgroups";
const PROC: &str = "--proc";
const REQUIRED: &str = "--required";
const GPU: &str = "--gpu";
/// Named in errors.
const FILE: &str = "FILE";
const PID: &str = "PID";

const OF_SET: [&str; 6] = [CLAIM, RECORDS, NVML, SOFT_GPU, CGROUPS, PROC];
const OF_PROBE: [&str; 5] = [GPU, NVML, SOFT_GPU, CGROUPS, PROC];

impl Command {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, Error> {
        let command = arguments.next().ok_or(Error::NoCommand)?;
        let mut options = match command.to_str() {
            Some("-h" | "--help" | "help") => return Ok(Self::Help),
            Some("-V" | "--version") => return Ok(Self::Version),
            Some("set") => Options::read(arguments, &OF_SET, Some(REQUIRED))?,
            Some("probe") => Options::read(arguments, &OF_PROBE, None)?,
            Some("enter") => return Self::enter(arguments),
            _ => return Err(Error::UnknownCommand(command)),
        };
        if options.help {
            return Ok(Self::Help);
        }
        if command == "set" {
            return Ok(Self::Set(Set {
                claim: options.needed_path(CLAIM)?,
                records: options.needed_path(RECORDS)?,
                is_required: options.flag,
                node: options.node()?,
            }));
        }
        let gpu = options.take(GPU).ok_or(Error::Missing(GPU))?;
        Ok(Self::Probe(Probe {
            gpu: gpu.into_string().map_err(|text| Error::Value(text, "a UUID"))?,
            node: options.node()?,
        }))
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
            if options.values.iter().any(|(given, _)| *given == name) {
                return Err(Error::Repeated(name));
            }
            options.values.push((name, value));
        }
        Ok(options)
    }

    fn take(&mut self, name: &'static str) -> Option<OsString> {
        let at = self.values.iter().position(|(given, _)| *given == name)?;
        Some(self.values.swap_remove(at).1)
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
        })
    }
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
        };
        let set = Set {
            claim: "/c".into(),
            records: "/r".into(),
            is_required: true,
            node: all,
        };
        let line = "set --required --proc /p --cgroups /g --soft-gpu /s --nvml /n --records /r --claim /c";
        assert_eq!(parse(line), Ok(Command::Set(set)));
        let probe = Probe {
            gpu: "GPU-1".into(),
            node: node(),
        };
        assert_eq!(parse("probe --gpu GPU-1 --nvml /n"), Ok(Command::Probe(probe)));
        let enter = Enter {
            pid: 1,
            program: "/p".into(),
            arguments: vec!["probe".into(), "--help".into()],
        };
        assert_eq!(parse("enter 1 /p probe --help"), Ok(Command::Enter(enter)));
        assert_eq!(parse("--version"), Ok(Command::Version));
        assert_eq!(parse("set --help"), Ok(Command::Help));
        let options = OF_SET.iter().chain(&OF_PROBE).chain([&REQUIRED]);
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
        assert_eq!(parse("enter"), Err(Error::Missing(PID)));
        assert_eq!(parse("enter self /p"), Err(Error::Value("self".into(), "a PID")));
        assert_eq!(parse("enter 1"), Err(Error::Missing(FILE)));
        assert_eq!(parse("enter 1 p"), Err(Error::Relative(FILE, "p".into())));
    }
}
