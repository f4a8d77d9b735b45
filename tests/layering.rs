//! Holds the house to its floor plan: imports go down only, and leaves do not import one another.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the ground up; a module may use what is in a lower one.
const LAYERS: [&[&str]; 5] = [
    &["model", "metrics", "clock", "shutdown"],
    &["room", "admission", "store", "relay", "wire", "auth"],
    &["hub"],
    &["server", "load"],
    &["main", "cli", "serve", "app", "config", "telemetry", "lib"],
];

/// The ground's own order: these use nothing of ours, not even each other, but for time, which the clock tells in the
/// model's words.
const ON_THE_GROUND: [(&str, &[&str]); 4] =
    [("model", &[]), ("metrics", &[]), ("clock", &["model"]), ("shutdown", &[])];

/// What a door may use besides the hub.
const FOR_DOORS: [&str; 3] = ["wire", "auth", "store"];

/// What only a session needs, to look after its own viewer.
const FOR_SERVER: [&str; 1] = ["room"];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("{module} is not in the floor plan"))
}

fn may_use(from: &str, to: &str) -> bool {
    if from == to {
        return true;
    }
    match layer(from) {
        0 => ON_THE_GROUND.iter().any(|(module, uses)| *module == from && uses.contains(&to)),
        3 if layer(to) == 1 => FOR_DOORS.contains(&to) || (from == "server" && FOR_SERVER.contains(&to)),
        4 => layer(to) <= 4 && to != "main",
        own => layer(to) < own,
    }
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

/// The module at the top of the house that a file belongs to.
fn module_of(path: &Path) -> String {
    let first = path.strip_prefix(src()).unwrap().iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every module that a text names behind `crate::` or, in the binary, `danmakud::`.
fn imports(text: &str, crate_name: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{crate_name}::")) {
        let rest = &code[at + crate_name.len() + 2..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut item = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => found.push(std::mem::take(&mut item)),
                    c => item.push(c),
                }
            }
            found.push(item);
        } else {
            found.push(rest.to_owned());
        }
    }
    let name = |item: String| -> String {
        item.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    found.into_iter().map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn imports_go_down_only() {
    let mut files = Vec::new();
    sources(&src(), &mut files);
    let mut checked = 0;
    for file in &files {
        let from = module_of(file);
        let text = fs::read_to_string(file).unwrap();
        let crate_name = if from == "main" { "danmakud" } else { "crate" };
        for to in imports(&text, crate_name) {
            checked += 1;
            assert!(may_use(&from, &to), "{} uses {to}, which the floor plan does not allow", file.display());
        }
    }
    assert!(files.len() > 50 && checked > 100, "only {checked} imports found in {} files", files.len());
}

#[test]
fn both_crates_refuse_missing_docs_and_unwraps() {
    for root in ["lib.rs", "main.rs"] {
        let text = fs::read_to_string(src().join(root)).unwrap();
        for line in ["#![deny(missing_docs)]", "#![cfg_attr(not(test), deny(clippy::unwrap_used))]"] {
            assert!(text.lines().any(|own| own == line), "{root} has no {line}");
        }
    }
}

#[test]
fn the_plan_is_read_as_it_is_meant() {
    assert_eq!(
        imports("use crate::{hub::Hub, wire::{a, b}};\n// use crate::no;\ncrate::room::x()", "crate"),
        ["hub", "wire", "room"]
    );
    for (from, to) in [("hub", "room"), ("server", "wire"), ("app", "config"), ("clock", "model"), ("load", "store")] {
        assert!(may_use(from, to), "{from} may use {to}");
    }
    for (from, to) in [("room", "wire"), ("relay", "hub"), ("model", "metrics"), ("load", "room"), ("hub", "server")] {
        assert!(!may_use(from, to), "{from} must not use {to}");
    }
}
