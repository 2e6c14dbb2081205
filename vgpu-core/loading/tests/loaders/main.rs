//! Tests every way of loading in every order, in a container and under `vgpu run`: the limit is enforced, and each byte
//! is charged once. The result is compared with the table of docs/loading.md.
//!
//! A way is a program, the library that it opens and its environment. An order is what happens before:
//! - `cuda`, `nvml`: libcuda or NVML is used first.
//! - `path`: the driver's own file is opened first by its absolute path, so that its DT_SONAME is taken.
//! - `compat`: a driver of the image is opened first by path, so that the backstop is called before anything else.

mod stage;
mod ways;

use stage::Stage;
use std::fs;
use std::path::Path;
use vgpu_loading::place::{Form, Place, Running, possible};
use vgpu_loading::share::Share;
use vgpu_loading::{GIB, example};
use vgpu_skip::skip;
use ways::{Way, ways};

const LIMIT: u64 = 2 * GIB;
const ORDERS: [&str; 4] = ["cuda", "nvml", "path", "compat"];
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/loading.md");

/// The outcome of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The program sees the share, the limit is enforced, and each byte is charged once.
    Holds,
    /// The program gets no GPU.
    Refused,
    /// Enforced, but the figures are not the share's, or bytes are charged twice.
    Wrong,
    /// The limit is not enforced.
    Free,
}

/// `cuda INIT TOTAL OVER HALF REST nvml INIT TOTAL USED`
fn judge(line: &str, charged: u64) -> Outcome {
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [0, LIMIT, 2, 0, 2, 0, LIMIT, used] if used == LIMIT / 2 && charged == used => Outcome::Holds,
        [0, _, 2, 0, 2, ..] => Outcome::Wrong,
        [0, ..] => Outcome::Free,
        _ => Outcome::Refused,
    }
}

fn cell(place: &Place, stage: &Stage, way: &Way, order: &str) -> (Outcome, String) {
    let environment: Vec<(&str, &str)> = way
        .environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let mut command = place.command(&way.program, &environment);
    command
        .args(&way.before)
        .args([order, &LIMIT.to_string(), &way.cuda, &way.nvml]);
    command
        .arg(place.form.driver().join("libcuda.so.1"))
        .arg(stage.path("compat/libcuda.so.1"));
    let mut running = Running::start(command);
    let line = running.line();
    let charged = place.share.charged();
    let said = running.end().unwrap_or_else(|error| error);
    (
        judge(&line, charged),
        format!("{line}; charged {charged}; {}", said.trim()),
    )
}

/// A cell of the table: the outcome of all orders, plus each order that differs from the first.
fn summary(form: Form, outcomes: &[(&str, Outcome)]) -> String {
    let word = |outcome| match (outcome, form) {
        (Outcome::Holds, _) => "holds",
        (Outcome::Refused, _) => "gets no GPU",
        (Outcome::Wrong, _) => "wrong figures",
        (Outcome::Free, Form::Container) => "only the node's watchdog catches it",
        (Outcome::Free, Form::User) => "not held",
    };
    let (_, first) = outcomes[0];
    let others = outcomes.iter().filter(|(_, outcome)| *outcome != first);
    let others: String = others
        .map(|(order, outcome)| format!("; `{order}` first: {}", word(*outcome)))
        .collect();
    word(first).to_owned() + &others
}

/// The cells of a place, by way, and the output of cells without an enforced limit.
fn column(place: &Place, stage: &Stage, purego: Option<&Path>, details: &mut Vec<String>) -> Vec<String> {
    let mut cells = Vec::new();
    for way in ways(stage, place, purego) {
        let mut outcomes = Vec::new();
        for order in ORDERS {
            let (outcome, detail) = cell(place, stage, &way, order);
            outcomes.push((order, outcome));
            if outcome != Outcome::Holds {
                details.push(format!(
                    "{:?}, {}, {order}: {outcome:?}: {detail}",
                    place.form, way.title
                ));
            }
        }
        cells.push(summary(place.form, &outcomes));
    }
    cells
}

/// The rows of the document's table: title, outcome in a container, outcome for an ordinary user, reason.
fn documented() -> Vec<Vec<String>> {
    let text = fs::read_to_string(DOCUMENT).unwrap_or_else(|error| panic!("{DOCUMENT}: {error}"));
    let table = text.lines().skip_while(|line| !line.starts_with("| a program reaches"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        row.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    })
    .collect()
}

#[test]
fn every_way_in_every_order_is_as_documented() {
    let stage = Stage::new();
    let share = |form: Form| Share::new(LIMIT, &stage.path("client"), &form.driver());
    let purego = stage::purego();
    if let Err(reason) = &purego {
        skip(
            "every_way_in_every_order_is_as_documented, Go's purego",
            reason.lines().last().unwrap_or_default(),
        );
    }
    let purego = purego.ok();
    let mut details = Vec::new();
    let place = Place::user(share(Form::User));
    let rows = ways(&stage, &place, purego.as_deref());
    let user = column(&place, &stage, purego.as_deref(), &mut details);
    let container = possible().map(|()| {
        let mut visible = vec![stage.folder(), Path::new(env!("CARGO_MANIFEST_DIR"))];
        let example = example("");
        visible.push(&example);
        visible.extend(purego.as_deref().and_then(Path::parent));
        let place = Place::container(share(Form::Container), Path::new("/"), &visible)
            .unwrap_or_else(|error| panic!("{error}"));
        column(&place, &stage, purego.as_deref(), &mut details)
    });
    if let Err(reason) = &container {
        skip("every_way_in_every_order_is_as_documented, in a container", reason);
    }
    let documented = documented();
    let of = |title: &str| documented.iter().find(|row| row[0] == title);
    let mut wrong = Vec::new();
    for (index, way) in rows.iter().enumerate() {
        // If no container can be created here, its column is taken from the document, so it is not compared.
        let untried = || of(way.title).and_then(|row| row.get(1)).cloned().unwrap_or_default();
        let inside = container
            .as_ref()
            .map_or_else(|_| untried(), |cells| cells[index].clone());
        let row = vec![way.title.to_owned(), inside, user[index].clone(), way.why.to_owned()];
        if of(way.title) != Some(&row) {
            wrong.push(format!("| {} |", row.join(" | ")));
        }
    }
    let known = |row: &&Vec<String>| !rows.iter().any(|way| way.title == row[0]) && !row[0].contains("purego");
    wrong.extend(
        documented
            .iter()
            .filter(known)
            .map(|row| format!("no such way: {}", row[0])),
    );
    assert!(
        wrong.is_empty(),
        "docs/loading.md differs; these are the rows:\n{}\n\n{}",
        wrong.join("\n"),
        details.join("\n")
    );
}

#[test]
fn outcomes_are_told_apart() {
    let half = LIMIT / 2;
    let line = |cuda: &str, nvml: &str| format!("cuda {cuda} nvml {nvml}");
    let good = format!("0 {LIMIT} 2 0 2");
    assert_eq!(judge(&line(&good, &format!("0 {LIMIT} {half}")), half), Outcome::Holds);
    assert_eq!(
        judge(&line(&good, &format!("0 {LIMIT} {half}")), LIMIT),
        Outcome::Wrong,
        "charged twice"
    );
    assert_eq!(
        judge(&line(&good, &format!("0 {} {half}", LIMIT * 40)), half),
        Outcome::Wrong,
        "NVML is the driver's"
    );
    assert_eq!(
        judge(&line(&format!("0 {LIMIT} 2 0 0"), &format!("0 {LIMIT} {half}")), half),
        Outcome::Free
    );
    assert_eq!(
        judge(&line(&format!("0 {} 0 0 0", LIMIT * 40), "0 0 0"), 0),
        Outcome::Free
    );
    assert_eq!(judge(&line("-1 -1 -1 -1 -1", "-1 -1 -1"), 0), Outcome::Refused);
    assert_eq!(judge("", 0), Outcome::Refused);
}
