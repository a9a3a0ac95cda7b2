//! SIGHUP reaches the whole process, so its test has one of its own.

use std::time::Duration;

use evenkeel_config::watch::{Cause, Reloads};

#[test]
fn sighup_is_a_reload_whether_or_not_the_file_changed() {
    let file = std::env::temp_dir().join(format!("evenkeel-sighup-{}.toml", std::process::id()));
    std::fs::write(&file, "").unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let mut reloads = Reloads::new(&file).unwrap();
        for _ in 0..2 {
            let kill = format!("kill -HUP {}", std::process::id());
            let mut shell = std::process::Command::new("sh");
            assert!(shell.args(["-c", &kill]).status().unwrap().success());
            let cause = tokio::time::timeout(Duration::from_secs(60), reloads.next()).await;
            assert_eq!(cause, Ok(Cause::Signal));
        }
    });
    std::fs::remove_file(file).unwrap();
}
