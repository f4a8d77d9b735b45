//! The load test beside viewers of Python in the same room at the same time: they have to see the same.

use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use super::clients::{python, root};
use super::support::server::{NO_LIMITS, Start, run};

/// Viewers of Python, and what one of them sends.
const VIEWERS: u64 = 50;
const RATE: u64 = 20;
const SECONDS: u64 = 5;

/// Viewers of the load test. With so many the room gathers comments long enough that what Python needs for its own viewers
/// is a small part of what is measured.
const CROWD: u64 = 400;

#[tokio::test(flavor = "multi_thread")]
async fn its_figures_are_those_of_an_independent_client() {
    let (data, report) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = Start::in_folder(data.path()).config(NO_LIMITS).run();
    let python = tokio::process::Command::new(python())
        .arg(root().join("tests/clients/measure.py"))
        .arg(format!("ws://{}/ws/shared-0", server.address))
        .args([VIEWERS, RATE, SECONDS].map(|number| number.to_string()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("python starts");
    let target = format!("http://{}", server.address);
    let (viewers, rate, duration) = (CROWD.to_string(), RATE.to_string(), format!("{SECONDS}s"));
    let report_dir = report.path().to_str().unwrap();
    let args = [
        ["--target", &target],
        ["--room", "shared"],
        ["--viewers", &viewers],
        ["--rate", &rate],
        ["--duration", &duration],
        ["--ack", "accepted"],
        ["--report", report_dir],
    ];
    let ours = run(&[&["load"], args.as_flattened()].concat()).await;
    let theirs = python.wait_with_output().await.expect("python ends");
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    let theirs: Value = serde_json::from_slice(&theirs.stdout).expect("it prints JSON");
    assert_eq!(ours.code, Some(0), "{ours:?}");
    let ours: Value = serde_json::from_slice(&std::fs::read(report.path().join("report.json")).unwrap()).unwrap();
    let count = |value: &Value| value.as_u64().unwrap();
    assert_eq!(count(&theirs["deliveries"]), VIEWERS * count(&theirs["sent"]));
    assert_eq!(count(&ours["counts"]["deliveries"]), CROWD * count(&ours["counts"]["accepted"]));
    // The times are a measurement, not a test: this machine may be busy.
    let delivery = &ours["latency"]["delivery"];
    for (name, theirs, ours) in
        [("p50", &theirs["p50"], &delivery["p50Ms"]), ("p99", &theirs["p99"], &delivery["p99Ms"])]
    {
        let (theirs, ours) = (theirs.as_f64().unwrap(), ours.as_f64().unwrap());
        println!("{name}: python {theirs:.2} ms, load {ours:.2} ms, ratio {:.3}", ours / theirs);
    }
}
