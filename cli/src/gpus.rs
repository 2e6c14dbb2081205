//! Lists the machine's GPUs through NVML.
//!
//! The driver's library runs in a helper process, `vgpu list-gpus LIBRARY SIZES`: threads, files, output and crashes of the
//! library end with it, and COMMAND starts in a process that never loaded it. A driver that hangs is given up after 20 s.
//!
//! Its line is "vgpu-gpus" and the list (`vgpu_node::gpus`) as JSON; other lines are the driver's own output.
#![forbid(unsafe_code)]

use crate::driver::Driver;
use crate::environment::SoftGpu;
use crate::run_dir::lock_file;
use nvml_wrapper::Nvml;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};
use vgpu_context_size::child::{Answer, KEPT, NoAnswer, answer};
use vgpu_context_size::{ANSWER_TIMEOUT, ContextSize, Kind, Sizes};
use vgpu_node::gpus::{self, List, MemorySizes};

/// Prefix of the helper's line.
const MARK: &str = "vgpu-gpus ";
/// How long a measurement that failed is not repeated: a run must not wait for a driver that hangs each time.
const FAILED_FOR: Duration = Duration::from_secs(5 * 60);
/// How long to wait for the lock while others measure.
const TURN: Duration = Duration::from_secs(30);

/// One GPU, or an instance of one in MIG mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index; of an instance, that of its GPU.
    pub index: u32,
    pub uuid: String,
    /// Profile and first memory slice of an instance, such as `3g.40gb@4`.
    pub instance: Option<String>,
    /// The memory for all shares together.
    pub memory: u64,
    pub kind: Kind,
    /// The size of a context. None: not measured.
    pub context: Option<ContextSize>,
}

/// The GPUs of a machine.
#[derive(Debug, Default)]
pub struct Listed {
    /// Whole GPUs, then instances of those in MIG mode.
    pub gpus: Vec<Gpu>,
    /// A sentence for each that NVML counts and that cannot be used, as one that fell off the bus.
    pub left_out: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("cannot run {}, the helper that asks NVML: {source}{}", program.display(), remedy(source))]
    Helper { program: PathBuf, source: std::io::Error },
    /// The software GPU's own message, which names the variable and its value.
    #[error("{0}")]
    SoftGpu(String),
    #[error("the GPUs cannot be listed through {}: {reason}{}", library.display(), hint(*.soft))]
    Driver {
        library: PathBuf,
        reason: String,
        soft: bool,
    },
}

/// The remedy for an error that the caller's limit of open files causes.
fn remedy(error: &std::io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::EMFILE) {
        "; raise the limit of open files (ulimit -n)"
    } else {
        ""
    }
}

fn hint(soft: bool) -> &'static str {
    if soft {
        ""
    } else {
        "; without a working NVIDIA driver use --soft-gpu for the software GPU"
    }
}

impl From<gpus::Gpu> for Gpu {
    fn from(gpu: gpus::Gpu) -> Self {
        let profile = gpu.mig.as_ref().map(|mig| format!(" MIG {}", mig.profile));
        Self {
            index: gpu.index,
            uuid: gpu.uuid,
            instance: gpu.mig.map(|mig| mig.to_string()),
            memory: gpu.memory,
            kind: Kind {
                driver_version: gpu.driver_version,
                model: gpu.name + &profile.unwrap_or_default(),
            },
            context: None,
        }
    }
}

impl Listed {
    /// # Errors
    /// Why there is no GPU.
    fn of(list: List) -> Result<Self, gpus::Error> {
        let why = list.why_empty().filter(|_| list.instances.is_empty());
        match why {
            Some(why) => Err(why),
            None => Ok(Self {
                gpus: list.gpus.into_iter().chain(list.instances).map(Gpu::from).collect(),
                left_out: list.left_out.into_iter().map(|left| left.why.to_string()).collect(),
            }),
        }
    }
}

/// Lists the GPUs of the NVML at `library`. `sizes`: configured sizes of memory. With `soft_gpu` that is the software GPU's, with these variables.
///
/// # Errors
/// NVML failed, no GPU answers, or a variable of the software GPU is not valid.
pub fn list(library: &Path, sizes: &MemorySizes, soft_gpu: Option<&SoftGpu>) -> Result<Listed, GpuError> {
    let program = PathBuf::from("/proc/self/exe");
    let sizes = serde_json::to_string(sizes).map_err(|error| blame(library, soft_gpu, error.to_string()))?;
    let mut helper = Command::new(&program);
    helper
        .arg0("vgpu")
        .arg("list-gpus")
        .arg(library)
        .arg(sizes)
        .env_remove("LD_PRELOAD");
    set(&mut helper, soft_gpu);
    let listed = match answer(helper, ANSWER_TIMEOUT, KEPT) {
        Ok(answer) => listed(&answer),
        Err(NoAnswer::Start(source)) => return Err(GpuError::Helper { program, source }),
        Err(error) => Err(error.to_string()),
    };
    listed.map_err(|reason| blame(library, soft_gpu, reason))
}

/// Reads what the helper has written.
fn listed(answer: &Answer) -> Result<Listed, String> {
    let mut lines = answer.stdout.lines();
    let list = lines.find_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok());
    match list.filter(|_| answer.status.success()) {
        Some(list) => Listed::of(list).map_err(|why| why.to_string()),
        None => {
            let silent = || format!("the helper ended with {}", answer.status);
            Err(answer.stderr.lines().next().map_or_else(silent, str::to_owned))
        }
    }
}

/// Measures the memory that a context takes on `gpu`, in a helper process, unless the file `known` already has the
/// size. The software GPU's size depends on its profile, so it is not stored. If the measurement fails, the size stays
/// unknown, a line on stderr says so, and the library reserves a default.
pub fn measure(driver: &Driver, soft_gpu: Option<&SoftGpu>, gpu: &mut Gpu, known: &Path) {
    let kind = gpu.kind.clone();
    let keeps = soft_gpu.is_none();
    let read = || if keeps { Sizes::read(known) } else { Sizes::none(known) };
    gpu.context = read().get(&kind);
    if gpu.context.is_some() {
        return;
    }
    // Several runs may start at once, and each one's context would change the others' figures. So they measure one
    // after another, and later ones usually find a stored figure. A run that cannot get the lock measures anyway.
    let _turn = lock_file(&beside(known, "-lock"), TURN);
    let mut sizes = read();
    gpu.context = sizes.get(&kind);
    if gpu.context.is_some() {
        return;
    }
    let failure = Failure::of(known, &kind);
    if keeps && failure.is_recent() {
        return;
    }
    let mut helper = Command::new("/proc/self/exe");
    helper.arg0("vgpu");
    set(&mut helper, soft_gpu);
    let asked = vgpu_context_size::Gpu {
        libcuda: driver.libcuda.clone(),
        libnvidia_ml: driver.libnvidia_ml.clone(),
        uuid: gpu.uuid.clone(),
    };
    match vgpu_context_size::ask(helper, &asked, ANSWER_TIMEOUT) {
        Ok(size) => {
            gpu.context = Some(size);
            // If the size cannot be stored, the next run measures again.
            let _ = sizes.put(kind, size, keeps);
        }
        Err(error) => {
            // A caller without stderr runs COMMAND all the same.
            let _ = writeln!(std::io::stderr(), "vgpu run: {}", unmeasured(&gpu.uuid, &error));
            if keeps {
                failure.keep();
            }
        }
    }
}

/// A file beside the sizes.
fn beside(known: &Path, suffix: &str) -> PathBuf {
    let mut name = known.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    known.with_file_name(name)
}

fn unmeasured(uuid: &str, error: &str) -> String {
    format!(
        "what a CUDA context takes on {uuid} cannot be measured: {error}; 600 MiB are reserved for each, or the whole \
         share if it is smaller"
    )
}

/// A file beside the sizes that names the kind that could not be measured last. Its time is that of the attempt.
struct Failure {
    path: PathBuf,
    kind: String,
}

// === impl Failure ===

impl Failure {
    fn of(known: &Path, kind: &Kind) -> Self {
        Self {
            path: beside(known, "-failed"),
            kind: format!("{}\t{}", kind.driver_version, kind.model),
        }
    }

    /// Returns true for some minutes after the attempt, but false if the clock was set back since.
    fn is_recent(&self) -> bool {
        let modified = std::fs::metadata(&self.path).and_then(|file| file.modified());
        let age = modified
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        age.is_some_and(|age| age < FAILED_FOR)
            && std::fs::read_to_string(&self.path).is_ok_and(|kind| kind == self.kind)
    }

    /// If the file cannot be written, the next run repeats the attempt.
    fn keep(&self) {
        let _ = std::fs::write(&self.path, &self.kind);
    }
}

fn set(helper: &mut Command, soft_gpu: Option<&SoftGpu>) {
    for (variable, value) in soft_gpu.into_iter().flat_map(SoftGpu::variables) {
        match value {
            Some(value) => helper.env(variable, value),
            None => helper.env_remove(variable),
        };
    }
}

/// Chooses the error: if a variable of the software GPU is wrong, its message starts with the variable.
fn blame(library: &Path, soft_gpu: Option<&SoftGpu>, reason: String) -> GpuError {
    let variables = soft_gpu.into_iter().flat_map(SoftGpu::variables);
    let mut named = variables.filter_map(|(variable, _)| reason.find(&format!("{variable}=")));
    match named.next() {
        Some(at) => GpuError::SoftGpu(reason[at..].to_owned()),
        None => GpuError::Driver {
            library: library.to_path_buf(),
            reason,
            soft: soft_gpu.is_some(),
        },
    }
}

/// The helper process.
#[must_use]
pub fn helper(library: &Path, sizes: &str) -> ExitCode {
    match ask(library, sizes) {
        Ok(list) => {
            // The driver may have written an unfinished line.
            println!("\n{MARK}{list}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The list as JSON, or why there is none.
fn ask(library: &Path, sizes: &str) -> Result<String, String> {
    let sizes: MemorySizes = serde_json::from_str(sizes).map_err(|error| error.to_string())?;
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
    let list = gpus::list(&nvml.map_err(|error| error.to_string())?, &sizes);
    let list = list.map_err(|error| error.to_string())?;
    serde_json::to_string(&list).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_is_named_with_its_remedy() {
        let error = |errno| GpuError::Helper {
            program: "/proc/self/exe".into(),
            source: std::io::Error::from_raw_os_error(errno),
        };
        let line = error(libc::EMFILE).to_string();
        assert!(
            line.ends_with("(os error 24); raise the limit of open files (ulimit -n)"),
            "{line}"
        );
        assert!(!error(libc::EACCES).to_string().contains("ulimit"));
    }

    #[test]
    fn a_failed_measurement_is_not_repeated_for_some_minutes() {
        let folder = tempfile::tempdir().expect("a folder");
        let kind = |version: &str| Kind {
            driver_version: version.into(),
            model: "NVIDIA H100 80GB".into(),
        };
        let failure = |version| Failure::of(&folder.path().join(".contexts"), &kind(version));
        assert!(!failure("550.1").is_recent());
        failure("550.1").keep();
        assert!(failure("550.1").is_recent());
        assert!(!failure("560.1").is_recent(), "another driver");
        let file = std::fs::File::options()
            .write(true)
            .open(&failure("550.1").path)
            .expect("the file");
        let long_ago = SystemTime::now() - FAILED_FOR;
        file.set_modified(long_ago).expect("a time");
        assert!(!failure("550.1").is_recent());
    }

    #[test]
    fn an_unmeasured_context_is_said_in_one_line_with_what_is_reserved_instead() {
        let line = unmeasured("GPU-1", "the helper has not answered for 20 s");
        for words in ["GPU-1", "not answered for 20 s", "600 MiB are reserved"] {
            assert!(line.contains(words), "{line}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn a_list_without_a_gpu_says_why() {
        let lost = |index| gpus::LeftOut {
            uuid: None,
            why: gpus::Error::Field {
                index,
                field: "handle".into(),
                reason: "GPU is lost".into(),
            },
        };
        let none = List::new([Err(lost(0)), Err(lost(1))]);
        assert_eq!(Listed::of(none).unwrap_err(), lost(0).why);
        let one = Listed::of(List::new([Err(lost(0)), Ok(gpus::Gpu::default())])).unwrap();
        assert_eq!(one.gpus.len(), 1);
        assert!(one.left_out[0].starts_with("GPU 0: handle cannot be read"), "{one:?}");
    }

    #[test]
    fn instances_are_listed_where_no_whole_gpu_is() {
        let mig = Some(gpus::Instance {
            profile: "3g.40gb".into(),
            placement: Some(gpus::Placement { start: 4, size: 4 }),
            ..gpus::Instance::default()
        });
        let list = List {
            instances: vec![gpus::Gpu {
                name: "NVIDIA H100".into(),
                mig,
                ..gpus::Gpu::default()
            }],
            ..List::default()
        };
        let listed = Listed::of(list).expect("an instance");
        assert_eq!(listed.gpus[0].instance.as_deref(), Some("3g.40gb@4"));
        assert_eq!(
            listed.gpus[0].kind.model, "NVIDIA H100 MIG 3g.40gb",
            "its contexts have a size of their own"
        );
    }

    #[test]
    fn the_software_gpus_message_names_its_variable() {
        let soft_gpu = SoftGpu::default();
        let line = |reason: &str, soft: bool| {
            let error = blame(Path::new("/lib/nvml"), soft.then_some(&soft_gpu), reason.into());
            error.to_string()
        };
        assert_eq!(line("soft-gpu: SOFT_GPU_STATE=/x: no", true), "SOFT_GPU_STATE=/x: no");
        assert_eq!(line("SOFT_GPU_PROFILE=/y: no", true), "SOFT_GPU_PROFILE=/y: no");
        assert!(line("driver not loaded", true).ends_with("through /lib/nvml: driver not loaded"));
        assert!(line("SOFT_GPU_STATE=/x: no", false).ends_with("use --soft-gpu for the software GPU"));
    }
}
