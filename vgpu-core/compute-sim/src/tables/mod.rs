//! The sections of docs/compute-accuracy.md.

mod head;
mod parts;
mod programs;
mod request;
mod variants;

use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::scenarios::drawn::GATE;

use request::{Laws, Request};

/// What to print: the whole page, or one section.
pub(crate) struct Output {
    section: Option<Section>,
    request: Request,
}

#[derive(Clone, Copy)]
struct Section {
    name: &'static str,
    print: fn(&Request),
}

const SECTIONS: [Section; 14] = [
    section("caps", parts::caps),
    section("pairs", parts::pair_tables),
    section("drawn", parts::drawn),
    section("many", parts::many_table),
    section("bursts", parts::bursts),
    section("slices", parts::slices),
    section("others", parts::others),
    section("alone", programs::alone),
    section("streams", programs::streams_table),
    section("lengths", programs::lengths),
    section("adversaries", programs::adversary_table),
    section("processes", programs::processes_table),
    section("programs", programs::programs),
    section("costs", programs::costs),
];
/// A section for work on the law, which is not on the page.
const VARIANTS: Section = section("variants", variants::variants);

const fn section(name: &'static str, print: fn(&Request)) -> Section {
    Section { name, print }
}

fn laws() -> Laws {
    vec![("hardware", LawKind::Hardware), ("limiter", LawKind::limited())]
}

/// Returns the names of the sections.
pub(crate) fn names() -> String {
    let sections = SECTIONS.iter().chain([&VARIANTS]).map(|section| section.name);
    let laws = laws().into_iter().map(|(name, _)| name);
    format!(
        "sections: {}\nlaws: {}",
        sections.collect::<Vec<_>>().join(" "),
        laws.collect::<Vec<_>>().join(" ")
    )
}

impl Output {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut section, mut chosen, mut sets) = (None, None, vec![GATE, 2, 3, 4, 5]);
        while let Some(argument) = arguments.next() {
            if argument == "--fresh" {
                let seed = arguments.next().and_then(|seed| seed.parse().ok());
                sets = vec![seed.ok_or("--fresh needs a number")?];
            } else if section.is_none() {
                section = Some(section_of(&argument)?);
            } else if chosen.is_none() {
                chosen = Some(laws_of(&argument)?);
            } else {
                return Err(format!("{argument}: one argument too many"));
            }
        }
        let laws = chosen.unwrap_or_else(laws);
        let request = Request { laws, sets };
        Ok(Self { section, request })
    }

    pub(crate) fn print(&self) {
        if let Some(section) = self.section {
            (section.print)(&self.request);
            return;
        }
        println!("{}", head::HEAD);
        for section in &SECTIONS {
            (section.print)(&self.request);
        }
    }
}

fn section_of(name: &str) -> Result<Section, String> {
    let mut all = SECTIONS.iter().chain([&VARIANTS]);
    let found = all.find(|section| section.name == name).copied();
    found.ok_or_else(|| format!("{name}: no such section"))
}

fn laws_of(names: &str) -> Result<Laws, String> {
    let law = |name: &str| {
        let found = laws().into_iter().find(|(law, _)| *law == name);
        found.ok_or_else(|| format!("{name}: no such law"))
    };
    names.split(',').map(law).collect()
}
