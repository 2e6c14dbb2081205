//! Checks the answers to 51 mistakes and situations of users, in the place where the user looks first. A file in
//! `e2e/people` is a case: words that the answer must have, and the user's manifest. It is tried with the rights of
//! `edit` in one namespace.
//!
//! Words of kubectl's answer, warnings included, are compared in a dry run. Other manifests are applied, and then the
//! pod's events or `vgpu explain` must have the words. A case that needs a broken node or controller names the test that
//! breaks it.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::layout;
use vgpu_e2e::shell::Said;
use vgpu_e2e::wait::wait;

use crate::explain::vgpu;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[("each_mistake_is_answered_where_its_user_looks", answered)];

const NAMESPACE: &str = "people";
const USER: &str = "--as=jane";
/// Cases, without those whose names begin with `more-`.
const CASES: usize = 51;

/// The first document of a case's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    row: String,
    /// A test of this program, or `FILE::NAME` of another one.
    covered: Option<String>,
    at: Option<Place>,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
    /// Arguments of kubectl in place of a manifest.
    #[serde(default)]
    ask: Vec<String>,
    /// The manifest is applied, and again with the second of these words in place of the first.
    changed: Option<[String; 2]>,
}

/// Where the user looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Place {
    /// kubectl's answer.
    Kubectl,
    /// Events on the pod of the case's name.
    Event,
    /// `vgpu explain` about that pod.
    Explain,
    /// `vgpu fit` with the manifest.
    Fit,
}

#[derive(Debug)]
struct Case {
    name: String,
    head: Head,
    manifest: String,
}

fn cases() -> Result<Vec<Case>> {
    let folder = layout::workspace().join("e2e/people");
    let mut cases = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let file = entry?.path();
        let name = file.file_stem().context("no name")?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&file)?;
        let (head, manifest) = text.split_once("\n---\n").unwrap_or((&text, ""));
        let head: Head = serde_saphyr::from_str(head).with_context(|| file.display().to_string())?;
        let manifest = manifest.to_owned();
        cases.push(Case { name, head, manifest });
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn answered() -> Result<()> {
    let cases = cases()?;
    let rows: BTreeSet<&str> = cases
        .iter()
        .filter(|case| !case.name.starts_with("more-"))
        .map(|case| case.head.row.as_str())
        .collect();
    ensure!(rows.len() == CASES, "{} rows and not {CASES}", rows.len());
    let (covered, tried): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.head.covered.is_some());
    let mut wrong: Vec<String> = covered
        .into_iter()
        .filter_map(|case| uncovered(case).err())
        .map(|e| format!("{e:#}"))
        .collect();
    shared::in_namespace(NAMESPACE, |installed, kube| {
        kube.run(&["create", "rolebinding", "jane", "--clusterrole=edit", "--user=jane"])?;
        for case in tried
            .iter()
            .filter(|case| matches!(case.head.at, Some(Place::Event | Place::Explain)))
        {
            // The result is ignored, because the API server may refuse parts of the manifest.
            kube.try_run_with_input(&["create", USER, "-f", "-"], &case.manifest)?;
        }
        let mut open: Vec<&Case> = tried.clone();
        let answers = wait(LIMIT, "every mistake to be answered", || {
            let mut silent = Vec::new();
            let mut still_open = Vec::new();
            for case in open.drain(..) {
                if let Err(error) = check(case, installed, kube) {
                    silent.push(format!("{}: {error:#}", case.name));
                    still_open.push(case);
                }
            }
            open = still_open;
            ensure!(silent.is_empty(), silent.join("\n"));
            Ok(Some(()))
        });
        wrong.extend(answers.err().map(|error| format!("{error:#}")));
        ensure!(wrong.is_empty(), wrong.join("\n"));
        Ok(())
    })
}

/// An error if the test that a case names does not exist.
fn uncovered(case: &Case) -> Result<()> {
    let covered = case.head.covered.as_deref().unwrap_or_default();
    let (module, name) = covered
        .rsplit_once("::")
        .context("`covered` is MODULE::NAME or FILE::NAME")?;
    let (file, declarations) = match module.strip_suffix(".rs") {
        Some(_) => (
            module.to_owned(),
            vec![
                format!("#[test]\nfn {name}() {{"),
                format!("#[test]\n    fn {name}() {{"),
                format!("#[tokio::test]\nasync fn {name}() {{"),
            ],
        ),
        // Without a file, it is a test of this program, in the list `TESTS` of its module.
        None => (
            format!("e2e/tests/cluster/{module}.rs"),
            vec![format!("(\"{name}\", "), format!("\"{name}\",\n")],
        ),
    };
    let file = layout::workspace().join(file);
    let text = fs::read_to_string(&file).with_context(|| format!("{}: {}", case.name, file.display()))?;
    let exists = declarations.iter().any(|declaration| text.contains(declaration));
    ensure!(exists, "{}: there is no test {covered}", case.name);
    Ok(())
}

/// An error if the answer lacks words, or has some that mislead.
fn check(case: &Case, installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    let answer = ask(case, installed, kube)?;
    let missing = case.head.says.iter().find(|words| !answer.contains(words.as_str()));
    ensure!(missing.is_none(), "no {missing:?} in: {answer}");
    let misleads = case.head.never.iter().find(|words| answer.contains(words.as_str()));
    ensure!(misleads.is_none(), "{misleads:?} misleads in: {answer}");
    ensure!(!case.head.says.is_empty(), "`says` is empty");
    Ok(())
}

fn ask(case: &Case, installed: &Installed, kube: &Kube<'_>) -> Result<String> {
    let dry_run = ["create", "--dry-run=server", USER, "-f", "-"];
    let said = match case
        .head
        .at
        .with_context(|| format!("{}: `at` is missing", case.name))?
    {
        Place::Event => return Ok(kube.events(&case.name, "")?.join("\n")),
        Place::Explain => vgpu(
            installed,
            &["explain", &format!("pod/{}", case.name), "-n", NAMESPACE, USER],
        )?,
        Place::Fit => fit(installed, &case.manifest)?,
        Place::Kubectl if !case.head.ask.is_empty() => {
            let ask = case.head.ask.iter().map(String::as_str);
            kube.try_run(&ask.chain([USER]).collect::<Vec<_>>())?
        }
        Place::Kubectl => match &case.head.changed {
            None => kube.try_run_with_input(&dry_run, &case.manifest)?,
            Some([from, to]) => {
                ensure!(case.manifest.contains(from.as_str()), "{}: no {from}", case.name);
                let apply = ["apply", USER, "-f", "-"];
                let said = kube.try_run_with_input(&apply, &case.manifest)?;
                ensure!(said.status.success(), "{}: {}", case.name, said.stderr);
                kube.try_run_with_input(&apply, &case.manifest.replace(from.as_str(), to))?
            }
        },
    };
    Ok(said.stdout + &said.stderr)
}

/// `vgpu fit` says what is wrong with a file, even to a user who may not read the cluster.
fn fit(installed: &Installed, manifest: &str) -> Result<Said> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), manifest)?;
    let file = file.path().to_str().context("a path that is not UTF-8")?;
    vgpu(installed, &["fit", "-f", file, "-n", NAMESPACE, USER])
}
