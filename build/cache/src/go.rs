//! Builds this repository's Go programs, which compare our code with Go originals, and caches them.

use crate::{Error, folder, run};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Returns the program of the module in a folder; it has the folder's name. With `VGPU_GO=cached` (`make unit`) it is
/// only taken from the cache: most of these programs contain Kubernetes, which takes minutes to build.
///
/// # Errors
/// It cannot be built, or must not be built now.
pub fn program(source: &Path) -> Result<PathBuf, Error> {
    let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| format!("{}: not a folder with a name", source.display()))?;
    build(source, ".", &name)
}

/// Returns a third-party program that the module in a folder pins as a tool: `package` is the package of its `main`.
///
/// # Errors
/// It cannot be built, or must not be built now.
pub fn tool(source: &Path, package: &str) -> Result<PathBuf, Error> {
    let name = package.rsplit('/').next().unwrap_or(package);
    build(source, package, name)
}

fn build(source: &Path, package: &str, name: &str) -> Result<PathBuf, Error> {
    let version = run(go(source).args(["env", "GOVERSION"]))
        .map_err(|said| Error::Unavailable(format!("Go is missing: install Go >= 1.26 ({})", last_line(&said))))?;
    let key = match package {
        "." => format!("{version}{}", all_of(source)?),
        package => format!("{version}{package}{}", all_of(source)?),
    };
    let done = folder(name, &key, |folder| {
        if std::env::var_os("VGPU_GO").is_some_and(|value| value == "cached") {
            let why = format!("{name} is not in the cache, and VGPU_GO=cached does not build it: `make test` does");
            return Err(Error::Unavailable(why));
        }
        eprintln!("building {}: a minute or two when nothing is cached", source.display());
        // The same flags as for e2e's tools, so that most of it is in Go's own cache.
        let built = run(go(source)
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"])
            .arg(folder.join(name))
            .arg(package));
        match built {
            Ok(_) => Ok(()),
            Err(said) if is_unavailable(&said) => {
                let why = last_line(&said);
                Err(Error::Unavailable(format!("{name} cannot be built: {why}")))
            }
            Err(said) => Err(Error::Failed(said)),
        }
    })?;
    Ok(done.join(name))
}

/// A program that answers each line with a line. It is stopped when the value is dropped.
#[derive(Debug)]
pub struct Answers {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Answers {
    /// Starts `e2e/kubernetes-go`, which answers with Kubernetes' own packages on one subject.
    ///
    /// # Errors
    /// Why it cannot run here.
    ///
    /// # Panics
    /// It does not build or start, although it could.
    pub fn of_kubernetes(subject: &str) -> Result<Self, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/kubernetes-go");
        let program = match program(&source) {
            Ok(program) => program,
            Err(Error::Unavailable(why)) => return Err(why),
            Err(Error::Failed(why)) => panic!("{why}"),
        };
        let mut process = Command::new(&program)
            .arg(subject)
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let (questions, answers) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            process,
            questions: questions.expect("a pipe to its input"),
            answers: BufReader::new(answers.expect("a pipe from its output")),
        })
    }

    /// Asks a question, which must not contain a line break, and returns the answer.
    ///
    /// # Errors
    /// The program has ended.
    pub fn ask(&mut self, question: &str) -> std::io::Result<String> {
        writeln!(self.questions, "{question}")?;
        let mut answer = String::new();
        match self.answers.read_line(&mut answer)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // It would end when its input closes, but a failed test does not wait for that.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `go` in a module, without the caller's workspace file.
fn go(source: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(source).env("GOWORK", "off");
    go
}

/// The contents of the folder that decide the result; go.sum covers the modules.
fn all_of(source: &Path) -> Result<String, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(source).map_err(|error| failed(source, error))? {
        let path = entry.map_err(|error| failed(source, error))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("go" | "mod" | "sum")) {
            files.push(path);
        }
    }
    files.sort();
    let mut all = String::new();
    for path in files {
        all.push_str(&path.file_name().unwrap_or_default().to_string_lossy());
        all.push('\0');
        all.push_str(&fs::read_to_string(&path).map_err(|error| failed(&path, error))?);
        all.push('\0');
    }
    Ok(all)
}

/// Recognises Go's messages for a missing network or an old toolchain, as opposed to an error in the program.
fn is_unavailable(said: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "requires go >=",
        "toolchain not available",
        "dial tcp",
        "no such host",
        "i/o timeout",
        "TLS handshake timeout",
        "connection refused",
        "module lookup disabled by GOPROXY=off",
    ];
    SIGNS.iter().any(|sign| said.contains(sign))
}

fn last_line(said: &str) -> &str {
    said.trim().lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{all_of, is_unavailable};

    #[test]
    fn no_answer_is_told_from_a_program_that_is_wrong() {
        for said in [
            "go: errors parsing go.mod: requires go >= 1.26.0 (running go 1.25.1; GOTOOLCHAIN=local)",
            "main.go:9:2: k8s.io/api@v0.37.1: Get \"https://proxy/k8s.io\": dial tcp: lookup proxy: no such host",
        ] {
            assert!(is_unavailable(said), "{said}");
        }
        assert!(!is_unavailable("./main.go:9:2: undefined: x"));
        assert!(!is_unavailable("verifying k8s.io/api@v0.37.1: checksum mismatch"));
    }

    #[test]
    fn every_source_decides_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("main.go", "package main");
        write("go.sum", "");
        let first = all_of(folder.path()).unwrap();
        write("README", "x");
        assert_eq!(first, all_of(folder.path()).unwrap());
        write("go.sum", "x");
        let second = all_of(folder.path()).unwrap();
        write("another.go", "");
        assert!(first != second && second != all_of(folder.path()).unwrap());
    }
}
