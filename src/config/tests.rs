use std::fs;
use std::path::{Path, PathBuf};

use super::raw::RawConfig;
use super::*;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The TOML files in a folder of the project; there must be some.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    assert!(!files.is_empty(), "no files in {folder}");
    files
}

fn from_file(path: &Path) -> Result<Config, ConfigError> {
    Config::load(&Layers { file: Some(path.to_owned()), ..Layers::default() })
}

fn from_environment(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::load(&Layers { environment, ..Layers::default() })
}

#[test]
fn every_shipped_file_is_valid() {
    for path in files("config") {
        from_file(&path).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn every_valid_file_is_taken() {
    for path in files("tests/data/config/valid") {
        from_file(&path).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_default_file_shows_every_key_with_its_default_and_a_reason() {
    let text = fs::read_to_string(root().join("config/default.toml")).unwrap();
    let shown: toml::Table = text.parse().unwrap();
    assert_eq!(shown, toml::Table::try_from(RawConfig::default()).unwrap());
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.windows(2) {
        if pair[1].contains(" = ") && !pair[1].starts_with('#') {
            assert!(pair[0].starts_with("# "), "no reason above {}", pair[1]);
        }
    }
}

#[test]
fn every_invalid_file_is_refused_with_its_place_and_what_would_be_right() {
    for path in files("tests/data/config/invalid") {
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().next().unwrap().strip_prefix("# expect: ").unwrap();
        let error = from_file(&path).expect_err(&path.display().to_string()).to_string();
        assert!(error.contains(expected), "{error}\nshould say {expected}");
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = from_file(Path::new("/no/such/file.toml")).unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file.toml: "), "{error}");
}

#[test]
fn later_layers_go_before_earlier_ones() {
    let layers = Layers {
        file: Some(root().join("config/production.toml")),
        environment: vec![
            ("DANMAKUD_LISTEN".into(), "127.0.0.1:1".into()),
            ("DANMAKUD_STORE_BATCH".into(), "7".into()),
            ("DANMAKUD_MONGODB_JOURNAL".into(), "false".into()),
            ("DANMAKUD_CONFIG".into(), "ignored".into()),
            ("PATH".into(), "/bin".into()),
        ],
        flags: vec![("listen", "--listen", "127.0.0.1:2".into())],
    };
    let config = Config::load(&layers).unwrap();
    assert_eq!(config.listen.port(), 2);
    assert_eq!(config.flusher.batch, 7);
    let StoreConfig::Mongo(mongo) = config.store else { panic!("{:?}", config.store) };
    assert_eq!((mongo.journal, mongo.database.as_str()), (false, "danmakud"));
    assert!(config.redis.is_some() && config.log.is_json);
}

#[test]
fn bad_variables_and_flags_are_named() {
    let table = [
        (("DANMAKUD_STORE_BACH", "7"), "no key has this variable; did you mean DANMAKUD_STORE_BATCH?"),
        (("DANMAKUD_STORE_BATCH", "many"), "DANMAKUD_STORE_BATCH: store.batch: \"many\" is not a whole number"),
        (("DANMAKUD_MONGODB_JOURNAL", "maybe"), "\"maybe\" is not true or false"),
        (("DANMAKUD_STORE_BATCH", "0"), "DANMAKUD_STORE_BATCH: store.batch: 0 is not within 1 to 100000"),
    ];
    for (variable, expected) in table {
        let error = from_environment(&[variable]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nshould say {expected}");
    }
    let flags = vec![("listen", "--listen", "nowhere".to_owned())];
    let error = Config::load(&Layers { flags, ..Layers::default() }).unwrap_err().to_string();
    assert!(error.starts_with("--listen: listen: \"nowhere\""), "{error}");
}

#[test]
fn the_database_comes_from_its_key_else_from_the_uri() {
    let database = |variables: &[(&str, &str)]| match from_environment(variables).unwrap().store {
        StoreConfig::Mongo(mongo) => mongo.database,
        StoreConfig::Embedded(_) => panic!("a URI was given"),
    };
    assert_eq!(database(&[("DANMAKUD_MONGODB_URI", "mongodb://u:p@a,b/evening?replicaSet=rs0")]), "evening");
    assert_eq!(database(&[("DANMAKUD_MONGODB_URI", "mongodb://a/?replicaSet=rs0")]), "danmakud");
    assert_eq!(database(&[("DANMAKUD_MONGODB_URI", "mongodb://a")]), "danmakud");
    let both = [("DANMAKUD_MONGODB_URI", "mongodb://a/evening"), ("DANMAKUD_MONGODB_DATABASE", "morning")];
    assert_eq!(database(&both), "morning");
}

#[test]
fn secrets_are_shown_nowhere() {
    let secrets = [
        ("DANMAKUD_MONGODB_URI", "mongodb://user:hunter2@h/?authSource=admin"),
        ("DANMAKUD_REDIS_URL", "redis://user:hunter2@h"),
        ("DANMAKUD_AUTH_SECRET", "hunter2-hunter2-hunter2-hunter2-hunter2"),
    ];
    let config = from_environment(&secrets).unwrap();
    for shown in [format!("{config:?}"), format!("{config}"), format!("{config:#?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
