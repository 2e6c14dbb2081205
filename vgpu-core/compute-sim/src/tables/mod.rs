//! The sections of docs/compute-accuracy.md.

mod head;
mod parts;
mod programs;
mod rows;

/// The sections in the page's order, by name.
const SECTIONS: [(&str, fn()); 14] = [
    ("caps", parts::caps),
    ("pairs", parts::pair_tables),
    ("drawn", parts::drawn),
    ("many", parts::many_table),
    ("bursts", parts::bursts),
    ("slices", parts::slices),
    ("others", parts::others),
    ("alone", programs::alone),
    ("streams", programs::streams_table),
    ("lengths", programs::lengths),
    ("adversaries", programs::adversary_table),
    ("processes", programs::processes_table),
    ("programs", programs::programs),
    ("costs", programs::costs),
];

/// Prints one section, or the whole page.
pub(crate) fn print(section: Option<&str>) -> Result<(), String> {
    let chosen = SECTIONS
        .iter()
        .filter(|(name, _)| section.is_none_or(|chosen| chosen == *name));
    let chosen: Vec<_> = chosen.map(|(_, print)| print).collect();
    if let (Some(name), []) = (section, &chosen[..]) {
        let names = SECTIONS.map(|(name, _)| name).join(" ");
        return Err(format!("{name}: no such section; write one of {names}"));
    }
    if section.is_none() {
        println!("{}", head::HEAD);
    }
    chosen.into_iter().for_each(|print| print());
    Ok(())
}
