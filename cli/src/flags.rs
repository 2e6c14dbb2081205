//! Raw flags, as typed. [`crate::request`] gives them their meaning.
//!
//! clap's own messages take several lines; here each error becomes one line that names the flag.

mod cluster;
mod offline;
mod operate;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use vgpu_quantity::shortened;

pub use cluster::ClusterFlags;
pub use offline::{
    AdviseFlags, AllocateFlags, AnswerFormat, ExplainFlags, FitFlags, GpuTemplate, ListFormat, SlicesFlags, TopFlags,
    TranslateFlags,
};
pub use operate::{BundleFlags, DoctorFlags, ProbeFlags};

/// A parsed command line.
#[derive(Debug)]
pub enum Parsed {
    Run(RunFlags),
    Allocate(AllocateFlags),
    Explain(ExplainFlags),
    Doctor(DoctorFlags),
    Bundle(BundleFlags),
    Fit(FitFlags),
    Slices(SlicesFlags),
    Top(TopFlags),
    Advise(AdviseFlags),
    Translate(TranslateFlags),
    Log {
        file: PathBuf,
    },
    /// The helper process of [`crate::gpus`].
    ListGpus {
        library: PathBuf,
        sizes: String,
    },
    /// The program of the pod of `vgpu doctor --probe`.
    ProbeShare,
    /// Help or version.
    Print(String),
}

const ABOUT: &str = "GPU fractions, with limits that hold";

const RUN_LONG: &str = "\
Runs COMMAND under the limits that a pod with the same fraction of a GPU would have: same limits file,
same library, same ledger, without Kubernetes. COMMAND sees one GPU with --memory in total.
Output, signals and exit status (128 + N when signal N ended it) are those of COMMAND.";

const RUN_AFTER: &str = "\
Shares:
  Each run has its own share. With --share NAME several commands use one share, and its limit applies
  to the sum of their memory. A command that joins a share may leave out limits, but not change them.
  A share is removed when no command uses it any more. Nothing checks that the memory of all shares
  together fits on the GPU. Their --cores are at most 100 in sum.

GPU time:
  The shares of one user on a GPU take turns. A balanced share gets at least its --cores while it has
  work, and of idle time a part by its --cores; one without --cores gets what the others leave. A
  guaranteed share gets at most its --cores, an unlimited one is never held back. The share of a whole
  GPU without --cores is unlimited. No kernel can be stopped: one longer than its turn gets more.

Driver:
  Its libcuda.so.1 and libnvidia-ml.so.1 are looked for in the folders of LD_LIBRARY_PATH, by the
  loader's cache (/etc/ld.so.cache), in the loader's folders, and in /usr/local/nvidia/lib64. The stubs
  of the CUDA toolkit are skipped. --verbose says which files were taken.

Not limited:
  As an ordinary user: the limits reach COMMAND by LD_PRELOAD, LD_LIBRARY_PATH and VGPU_RUN_DIR. They do
  not reach setuid or setgid programs, statically linked programs, or programs that are started with
  a cleared environment (env -i, some daemons and batch systems).
  As root: COMMAND runs in its own mount namespace, in which libvgpu.so replaces the driver. Of these
  programs only statically linked ones are not limited. On a machine without the driver's libraries
  (--soft-gpu), the loader's library folder is read-only for COMMAND. Root without the right to make
  a mount namespace (many containers) is treated as an ordinary user.
  No library in a process is a security boundary: raw ioctls on the GPU's device files bypass it.

Variables:
  SOFT_GPU_STATE, SOFT_GPU_PROFILE   the software GPU's state folder and profile (with --soft-gpu)
  XDG_RUNTIME_DIR                    its folder vgpu-run has an ordinary user's shares (if unset:
                                     /tmp/vgpu-run-<uid>); root's are in /run/vgpu-run
  VGPU_LOG                           FILE or FILE:level (error, info, debug): what the library finds, refuses
                                     and measures, and in FILE.<pid>.ring the last calls (docs/debugging.md)
  CUDA_VISIBLE_DEVICES               replaced by the share's GPU. If COMMAND sets it again, 0 is the
                                     GPU that COMMAND sees

Exit status:
  That of COMMAND; 128 + N when signal N ended it; 127 when it was not found, 126 when it cannot be
  executed; 2 for an error in the flags, or when this machine does not support them.";

#[derive(Parser, Debug)]
#[command(name = "vgpu", version, about = ABOUT, after_help = "See `vgpu run --help` for what is limited and what is not.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a local command under GPU limits. As an ordinary user, setuid and static programs and those with a cleared environment are not limited
    #[command(long_about = RUN_LONG, after_help = RUN_AFTER)]
    Run(RunFlags),
    /// Show where claims in files would be placed, without a cluster
    #[command(long_about = offline::ALLOCATE_LONG, after_help = offline::ALLOCATE_AFTER)]
    Allocate(AllocateFlags),
    /// Explain why pods wait: what blocks them on each GPU, and what would fit; and what a pod that runs has and uses
    #[command(long_about = offline::EXPLAIN_LONG, after_help = offline::EXPLAIN_AFTER)]
    Explain(ExplainFlags),
    /// Say how many pods of a workload would have their devices now, and what the next one lacks
    #[command(long_about = offline::FIT_LONG, after_help = offline::FIT_AFTER)]
    Fit(FitFlags),
    /// Print the ResourceSlices that a new node will publish, as templates for an autoscaler
    #[command(long_about = offline::SLICES_LONG, after_help = offline::SLICES_AFTER)]
    Slices(SlicesFlags),
    /// Show what the namespace holds and uses of the GPUs; -A: each namespace, --nodes: each GPU
    #[command(long_about = offline::TOP_LONG, after_help = offline::TOP_AFTER)]
    Top(TopFlags),
    /// Say which requests would have been enough, by what was used
    #[command(long_about = offline::ADVISE_LONG, after_help = offline::ADVISE_AFTER)]
    Advise(AdviseFlags),
    /// Find what keeps the driver from working on a cluster: each with the object, what it breaks, and what to do
    #[command(long_about = operate::DOCTOR_LONG, after_help = operate::DOCTOR_AFTER)]
    Doctor(DoctorFlags),
    /// Collect objects, logs and a page with a bar for each GPU into one archive, without Secrets and tenants' names
    #[command(long_about = operate::BUNDLE_LONG, after_help = operate::BUNDLE_AFTER)]
    Bundle(BundleFlags),
    /// Print pods of HAMi, Koordinator, Volcano, gpu-manager and KAI as pods with claims, and what is lost
    #[command(long_about = offline::TRANSLATE_LONG, after_help = offline::TRANSLATE_AFTER)]
    Translate(TranslateFlags),
    /// Print the last calls of a process from FILE.<pid>.ring, which VGPU_LOG=FILE has recorded (docs/debugging.md)
    Log {
        /// The ring: FILE.<pid>.ring
        file: PathBuf,
    },
    /// Print a script that completes commands and flags: for bash, `source <(vgpu completion bash)`
    Completion { shell: Shell },
    /// Print the manual page of vgpu, or of one of its commands, for `man -l -`
    Man { command: Option<String> },
    /// Print the version
    Version,
    #[command(name = "list-gpus", hide = true)]
    ListGpus { library: PathBuf, sizes: String },
    #[command(name = "probe-share", hide = true)]
    ProbeShare,
}

/// The flags of `vgpu run` as typed.
#[derive(Args, Debug, Default)]
pub struct RunFlags {
    /// Limit of device memory, a quantity of at least 64Mi [default: the share's, else the whole GPU]
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true)]
    pub memory: Option<OsString>,
    /// Percent of the GPU's time, 0 to 100 [default: the share's, else 0]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub cores: Option<OsString>,
    /// guaranteed: at most --cores; balanced: at least --cores, and a part of idle time; unlimited: not held back [default: the share's, else balanced]
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true)]
    pub compute_policy: Option<OsString>,
    /// high: its work goes before that of low shares; low [default: the share's, else low]
    #[arg(long, value_name = "PRIORITY", allow_hyphen_values = true)]
    pub priority: Option<OsString>,
    /// Use the share NAME, and create it if it does not exist: a-z, 0-9 and -, at most 63 [default: a new share]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub share: Option<OsString>,
    /// GPU by NVML's index or by UUID, or an instance of one in MIG mode by its UUID [default: the share's, else 0]
    #[arg(long, value_name = "INDEX|UUID", allow_hyphen_values = true)]
    pub gpu: Option<OsString>,
    /// Size of a product's memory, of which the driver has no figure: 'NVIDIA GB10=96Gi'; may be given for several
    #[arg(long, value_name = "PRODUCT=QUANTITY", allow_hyphen_values = true)]
    pub gpu_memory: Vec<OsString>,
    /// Use the software GPU instead of an NVIDIA driver
    #[arg(long)]
    pub soft_gpu: bool,
    /// Say on standard error which GPU and which files of the driver the share has
    #[arg(long)]
    pub verbose: bool,
    /// When COMMAND has ended, print on stderr what its processes waited for, were refused and measured (docs/debugging.md)
    #[arg(long)]
    pub report: bool,
    /// Command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The name the program was called by: kubectl calls its plugins `kubectl-NAME`, here `kubectl-vgpu`.
fn called_as(args: &[OsString]) -> &'static str {
    let file = args.first().and_then(|path| Path::new(path).file_name());
    match file.is_some_and(|name| name == "kubectl-vgpu") {
        true => "kubectl vgpu",
        false => "vgpu",
    }
}

fn completion(shell: Shell, name: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn manual(command: Option<&str>) -> Result<String, String> {
    let mut cli = Cli::command();
    // Gives the commands their full names.
    cli.build();
    let asked = match command {
        None => Some(&cli),
        Some(name) => cli.find_subcommand(name),
    };
    let asked = asked.ok_or_else(|| format!("{:?}: unknown command (see vgpu --help)", command.unwrap_or_default()))?;
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(asked.clone()).render(&mut page);
    rendered.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Reads a command line.
///
/// # Errors
/// One line that names the flag and the error.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, String> {
    let args: Vec<OsString> = args.into_iter().collect();
    let typed = args.get(1).map(|command| command.to_string_lossy().into_owned());
    if let Some(flag) = flag_before_the_command(&args) {
        return Err(format!("{flag}: its value is missing (see vgpu run --help)"));
    }
    let program = called_as(&args);
    let matches = Cli::command().bin_name(program).try_get_matches_from(args);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Parsed::Print(error.to_string()));
        }
        Err(error) => {
            let command = typed.filter(|typed| Cli::command().find_subcommand(typed).is_some());
            return Err(one_line(&error, program, command.as_deref()));
        }
    };
    Ok(match cli.command {
        Command::Run(flags) => Parsed::Run(flags),
        Command::Allocate(flags) => Parsed::Allocate(flags),
        Command::Explain(flags) => Parsed::Explain(flags),
        Command::Fit(flags) => Parsed::Fit(flags),
        Command::Slices(flags) => Parsed::Slices(flags),
        Command::Doctor(flags) => Parsed::Doctor(flags),
        Command::Bundle(flags) => Parsed::Bundle(flags),
        Command::Top(flags) => Parsed::Top(flags),
        Command::Advise(flags) => Parsed::Advise(flags),
        Command::Translate(flags) => Parsed::Translate(flags),
        Command::Log { file } => Parsed::Log { file },
        Command::Completion { shell } => Parsed::Print(completion(shell, &program.replace(' ', "-"))),
        Command::Man { command } => Parsed::Print(manual(command.as_deref())?),
        Command::Version => Parsed::Print(format!("vgpu {}\n", env!("CARGO_PKG_VERSION"))),
        Command::ListGpus { library, sizes } => Parsed::ListGpus { library, sizes },
        Command::ProbeShare => Parsed::ProbeShare,
    })
}

/// Returns the flag of `vgpu run` whose value is `--`. clap would read on and blame COMMAND.
fn flag_before_the_command(args: &[OsString]) -> Option<String> {
    let cli = Cli::command();
    let run = cli.find_subcommand("run")?;
    let takes_value = |word: &OsString| {
        let mut flags = run.get_arguments().filter(|flag| flag.get_action().takes_values());
        let name = word.to_str().and_then(|word| word.strip_prefix("--"));
        name.is_some() && flags.any(|flag| flag.get_long() == name)
    };
    let mut words = args.iter().skip(1);
    if words.next()? != "run" {
        return None;
    }
    while let Some(word) = words.next().filter(|word| *word != "--") {
        if takes_value(word) && words.next()? == "--" {
            return word.to_str().map(str::to_owned);
        }
    }
    None
}

/// Formats clap's error in one line. `command` is the subcommand that was typed.
fn one_line(error: &clap::Error, program: &str, command: Option<&str>) -> String {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => shortened(text.split(" <").next().unwrap_or(text)).into_owned(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        _ => String::new(),
    };
    let flag = named(ContextKind::InvalidArg);
    let what = match error.kind() {
        ErrorKind::UnknownArgument if flag.starts_with('-') => {
            format!("{flag}: unknown flag{}", meant(&named(ContextKind::SuggestedArg)))
        }
        ErrorKind::UnknownArgument => format!("{flag:?}: unexpected argument; {}", expected(command)),
        ErrorKind::InvalidValue if named(ContextKind::InvalidValue).is_empty() => {
            format!("{flag}: its value is missing")
        }
        ErrorKind::InvalidValue => {
            let values = named(ContextKind::ValidValue);
            format!("{flag}: {:?} is not one of {values}", named(ContextKind::InvalidValue))
        }
        ErrorKind::TooManyValues if command == Some("explain") => {
            let word = named(ContextKind::InvalidValue);
            format!("{word:?}: unexpected argument; one object is explained at a time")
        }
        ErrorKind::TooManyValues => format!("{flag}: takes no value"),
        ErrorKind::ArgumentConflict => match named(ContextKind::PriorArg) {
            prior if prior.is_empty() || prior == flag => format!("{flag}: given twice"),
            prior => format!("{flag}: not with {prior}"),
        },
        ErrorKind::MissingRequiredArgument => missing(command).to_owned(),
        ErrorKind::InvalidSubcommand => {
            let meant = meant(&named(ContextKind::SuggestedSubcommand));
            format!("{:?}: unknown command{meant}", named(ContextKind::InvalidSubcommand))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "a command is missing, for example: vgpu run --memory 20Gi -- COMMAND".to_owned()
        }
        _ => {
            let text = error.to_string();
            text.lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned()
        }
    };
    let of = command.map_or_else(String::new, |command| format!(" {command}"));
    format!("{what} (see {program}{of} --help)")
}

fn missing(command: Option<&str>) -> &'static str {
    match command {
        Some("allocate" | "fit" | "translate") => "-f: FILE is missing",
        Some("doctor") => "--probe is missing: the other flags are about its pod",
        Some("slices") => "--like NODE or --gpu PRODUCT:COUNT is missing",
        Some("log") => "the file is missing: name a ring, FILE.<pid>.ring beside the log",
        _ => "COMMAND is missing: write it after --",
    }
}

/// Returns the arguments that a command takes, for the error about an unexpected argument.
fn expected(command: Option<&str>) -> &'static str {
    match command {
        Some("allocate" | "fit" | "translate") => "files follow after -f",
        Some("explain") => "one object is explained at a time, as KIND/NAME",
        Some("doctor" | "bundle") => "it looks at the whole cluster",
        Some("top") => "-n NAMESPACE, -A or --nodes choose what is shown",
        Some("advise") => "one workload is advised at a time, or all",
        Some("slices") => "--like NODE or --gpu PRODUCT:COUNT says which slices",
        Some("log") => "one ring is printed at a time",
        _ => "COMMAND follows after --",
    }
}

fn meant(suggested: &str) -> String {
    match suggested {
        "" => String::new(),
        suggested => format!("; did you mean {suggested}?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(args: &[&str]) -> String {
        match parse(args.iter().map(OsString::from)) {
            Err(line) => line,
            other => panic!("{args:?} is accepted: {other:?}"),
        }
    }

    /// A command, and how the line about it begins. After `--memory --` it is not "true" that is missing: that is in its place.
    const MISTAKES: &str = r#"
vgpu | a command is missing
vgpu walk | "walk": unknown command (see vgpu --help)
vgpu --loud | --loud: unknown flag
vgpu run | COMMAND is missing
vgpu run -- | COMMAND is missing
vgpu run true | "true": unexpected argument; COMMAND follows after --
vgpu run --mem 1Gi -- true | --mem: unknown flag
vgpu run -m 1Gi -- true | -m: unknown flag
vgpu run --memory | --memory: its value is missing
vgpu run --memory -- true | --memory: its value is missing
vgpu run --cores --memory --gpu -- true | --gpu: its value is missing
vgpu run --cores 1 --cores 2 -- true | --cores: given twice
vgpu run --soft-gpu=yes -- true | --soft-gpu: takes no value
vgpu allocate | -f: FILE is missing
vgpu allocate x.yaml | "x.yaml": unexpected argument; files
vgpu allocate -f | --filename: its value is missing
vgpu translate | -f: FILE is missing (see vgpu translate --help)
vgpu translate x.yaml | "x.yaml": unexpected argument; files
vgpu allocate -f x -o xml | --output: "xml" is not one of json yaml
vgpu allocate -f x --nodes n | --nodes: unknown flag
vgpu top team | "team": unexpected argument; -n NAMESPACE
vgpu top -A --nodes | --all-namespaces: not with --nodes
vgpu top -n a -A | --namespace: not with --all-namespaces
vgpu advise a b | "b": unexpected argument; one workload
vgpu slices | --like NODE or --gpu PRODUCT:COUNT is missing
vgpu slices gpu-node-1 | "gpu-node-1": unexpected argument; --like NODE or
vgpu slices --gpu H100 | invalid value 'H100' for '--gpu
vgpu slices --gpu T4:0 | invalid value 'T4:0' for '--gpu
vgpu slices --like a --gpu T4:1 | --like: not with --gpu
vgpu log | the file is missing: name a ring
vgpu doctor -n team | --probe is missing: the other flags are about its pod (see vgpu doctor --help)
vgpu doctor --probe --timeout 0 | invalid value '0' for '--timeout
vgpu bundle team | "team": unexpected argument; it looks
vgpu log a b | "b": unexpected argument; one ring
vgpu explain pod a b | "b": unexpected argument; one object
vgpu explain -A -n x | --all-namespaces: not with --namespace"#;

    #[test]
    fn a_mistake_is_one_line_that_names_the_flag() {
        for row in MISTAKES.trim().lines() {
            let (args, start) = row.split_once(" | ").expect("two cells");
            let args: Vec<&str> = args.split(' ').collect();
            let line = line_of(&args);
            assert!(line.starts_with(start), "{args:?}: {line}");
            assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
        }
    }

    /// A command, and the line about it.
    const MEANT: &str = r#"
vgpu explian | "explian": unknown command; did you mean explain? (see vgpu --help)
/usr/bin/kubectl-vgpu explain pod/a --namespac team | --namespac: unknown flag; did you mean --namespace? (see kubectl vgpu explain --help)
vgpu man explian | "explian": unknown command (see vgpu --help)"#;

    #[test]
    fn a_mistake_names_what_was_meant_and_how_the_program_was_called() {
        for row in MEANT.trim().lines() {
            let (args, line) = row.split_once(" | ").expect("two cells");
            let args: Vec<&str> = args.split(' ').collect();
            assert_eq!(line_of(&args), line);
        }
    }

    #[test]
    fn usage_completion_and_manual_have_the_name_that_was_typed() {
        let printed = |args: &[&str]| match parse(args.iter().map(OsString::from)) {
            Ok(Parsed::Print(text)) => text,
            other => panic!("{args:?}: {other:?}"),
        };
        let help = printed(&["kubectl-vgpu", "explain", "--help"]);
        assert!(help.contains("Usage: kubectl vgpu explain"), "{help}");
        for shell in ["bash", "zsh", "fish"] {
            let script = printed(&["kubectl-vgpu", "completion", shell]);
            assert!(
                script.contains("kubectl-vgpu") && script.contains("translate"),
                "{script}"
            );
        }
        assert!(printed(&["vgpu", "man"]).contains(".TH vgpu"));
        assert!(printed(&["vgpu", "man", "explain"]).contains("kubeconfig"));
        assert_eq!(printed(&["vgpu", "version"]), printed(&["vgpu", "--version"]));
    }

    #[test]
    fn a_long_argument_is_shortened() {
        let long = "x".repeat(5000);
        for args in [
            &["vgpu", &long][..],
            &["vgpu", "run", &long],
            &["vgpu", "run", &format!("--{long}"), "--", "true"],
            &["vgpu", "allocate", "-f", "x", "-o", &long],
            &["vgpu", "explain", "pod", "a", &long],
        ] {
            let line = line_of(args);
            assert!(line.len() < 250 && line.contains("xxx..."), "{line}");
        }
    }

    #[test]
    fn a_value_may_look_like_a_flag_so_that_it_can_be_named() {
        let parsed = parse(["vgpu", "run", "--memory", "-1Gi", "--", "--help"].map(OsString::from));
        let Ok(Parsed::Run(flags)) = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(flags.memory, Some("-1Gi".into()));
        assert_eq!(flags.command, ["--help"]);
    }

    #[test]
    fn help_says_what_an_ordinary_users_run_does_not_hold() {
        for args in [
            &["vgpu", "--help"][..],
            &["vgpu", "run", "--help"],
            &["vgpu", "run", "-h"],
        ] {
            let Ok(Parsed::Print(text)) = parse(args.iter().map(OsString::from)) else {
                panic!("{args:?} prints nothing");
            };
            let text = text.to_lowercase();
            for word in ["setuid", "static", "cleared environment"] {
                let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(flat.contains(word), "{args:?} does not say {word:?}:\n{text}");
            }
        }
    }
}
