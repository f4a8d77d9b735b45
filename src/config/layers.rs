//! The layers of a configuration, merged, with a memory of where each key came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::ConfigError;
use super::raw::RawConfig;

/// What begins the name of every environment variable of ours.
const PREFIX: &str = "DANMAKUD_";

/// Variables with our prefix that are not keys of the configuration.
const NOT_KEYS: [&str; 1] = ["DANMAKUD_CONFIG"];

/// Where the parts of a configuration come from; later ones win.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Environment variables; those without our prefix are not looked at.
    pub environment: Vec<(String, String)>,
    /// Keys (`section.key`) that flags set, with the flag's name and its value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// The layers put over each other.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) raw: RawConfig,
    /// Who set a key; keys that nobody set are not here.
    places: BTreeMap<String, String>,
}

impl Merged {
    /// A refusal of this key, at the place that set it.
    pub(super) fn refuse(&self, key: &str, problem: impl ToString) -> ConfigError {
        self.refuse_pair(key, key, problem)
    }

    /// A refusal of this key beside another: one of them was set, and at that place.
    pub(super) fn refuse_pair(&self, key: &str, beside: &str, problem: impl ToString) -> ConfigError {
        let place = self.places.get(key).or_else(|| self.places.get(beside));
        let place = place.cloned().unwrap_or_else(|| "default".to_owned());
        ConfigError::Key { place, key: key.to_owned(), problem: problem.to_string() }
    }
}

impl Layers {
    /// Puts the layers over each other.
    pub(super) fn merge(&self) -> Result<Merged, ConfigError> {
        let schema = schema();
        let mut merged = Table::new();
        let mut places = BTreeMap::new();
        if let Some(path) = &self.file {
            let table = read(path)?;
            for (key, value) in flatten(&table) {
                known(&schema, &key, &path.display().to_string())?;
                places.insert(key.clone(), path.display().to_string());
                set(&mut merged, &key, value);
            }
        }
        for (name, raw) in &self.environment {
            if let Some(key) = key_of_variable(&schema, name)? {
                places.insert(key.clone(), name.clone());
                set(&mut merged, &key, typed(&schema, &key, raw, name)?);
            }
        }
        for (key, flag, raw) in &self.flags {
            places.insert((*key).to_owned(), (*flag).to_owned());
            set(&mut merged, key, typed(&schema, key, raw, flag)?);
        }
        let raw = parse(merged, &places)?;
        Ok(Merged { raw, places })
    }
}

/// Every key with its default: what the keys are, and of which type.
fn schema() -> BTreeMap<String, Value> {
    let table = Table::try_from(RawConfig::default()).expect("the defaults are plain TOML values");
    flatten(&table).into_iter().collect()
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::File { file: file.clone(), problem: error.to_string() })?;
    // The parser's message shows the line and points at the place.
    text.parse().map_err(|error: toml::de::Error| ConfigError::File { file, problem: error.to_string() })
}

/// `section.key` for every value; a table inside a section stays a value, to be refused by its type.
fn flatten(table: &Table) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(section) => {
                flat.extend(section.iter().map(|(inner, value)| (format!("{key}.{inner}"), value.clone())));
            }
            value => flat.push((key.clone(), value.clone())),
        }
    }
    flat
}

fn set(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((section, inner)) => {
            let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                section.insert(inner.to_owned(), value);
            }
        }
        None => drop(table.insert(key.to_owned(), value)),
    }
}

fn known(schema: &BTreeMap<String, Value>, key: &str, place: &str) -> Result<(), ConfigError> {
    if schema.contains_key(key) {
        return Ok(());
    }
    let nearest = schema.keys().min_by_key(|known| distance(known, key)).cloned().unwrap_or_default();
    let problem = format!("there is no such key; did you mean {nearest}?");
    Err(ConfigError::Key { place: place.to_owned(), key: key.to_owned(), problem })
}

/// How many letters two keys differ by (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut next = vec![left];
        for ((y, above), corner) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            left = (corner + usize::from(x != *y)).min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// The key that a variable names; none for variables that are not ours.
fn key_of_variable(schema: &BTreeMap<String, Value>, name: &str) -> Result<Option<String>, ConfigError> {
    if !name.starts_with(PREFIX) || NOT_KEYS.contains(&name) {
        return Ok(None);
    }
    let variable = |key: &str| format!("{PREFIX}{}", key.replace('.', "_").to_uppercase());
    if let Some(key) = schema.keys().find(|key| variable(key) == name) {
        return Ok(Some(key.clone()));
    }
    let nearest = schema.keys().map(|key| variable(key)).min_by_key(|known| distance(known, name));
    let problem = format!("no key has this variable; did you mean {}?", nearest.unwrap_or_default());
    Err(ConfigError::Key { place: "environment".to_owned(), key: name.to_owned(), problem })
}

/// A value from a text, of the type that the key's default has.
fn typed(schema: &BTreeMap<String, Value>, key: &str, raw: &str, place: &str) -> Result<Value, ConfigError> {
    let wrong = |what: &str| ConfigError::Key {
        place: place.to_owned(),
        key: key.to_owned(),
        problem: format!("{raw:?} is not {what}"),
    };
    match schema.get(key) {
        Some(Value::Integer(_)) => raw.parse().map(Value::Integer).map_err(|_| wrong("a whole number")),
        Some(Value::Boolean(_)) => raw.parse().map(Value::Boolean).map_err(|_| wrong("true or false")),
        _ => Ok(Value::String(raw.to_owned())),
    }
}

/// The types are checked key by key, so that the message can name the key and who set it.
fn parse(merged: Table, places: &BTreeMap<String, String>) -> Result<RawConfig, ConfigError> {
    let schema = schema();
    for (key, value) in flatten(&merged) {
        let Some(default) = schema.get(&key) else { continue };
        if value.type_str() != default.type_str() {
            let problem = format!("is {}, should be {}", article(value.type_str()), article(default.type_str()));
            let place = places.get(&key).cloned().unwrap_or_default();
            return Err(ConfigError::Key { place, key, problem });
        }
    }
    merged.try_into().map_err(|error: toml::de::Error| ConfigError::File {
        file: "configuration".to_owned(),
        problem: error.message().to_owned(),
    })
}

fn article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {kind}")
}
