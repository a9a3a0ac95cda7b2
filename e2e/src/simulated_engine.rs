//! Simulated engine of `bench/inference/mocker.py`: a process that can be killed, stopped and slowed down.

use std::net::SocketAddr;
use std::process::{Child, Stdio};

use crate::process::{Signal, are_installed, program, signal};
use crate::server::address;
use crate::wait_until;
use crate::wire::Wire;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/inference/mocker.py");

/// Engine in a process, killed when dropped. It reads 2,048 tokens of prompts in a step, remembers what it has read in
/// blocks of 512 tokens, and takes time as an engine does, without using a processor.
pub struct SimulatedEngine {
    address: SocketAddr,
    process: Option<Child>,
}

impl SimulatedEngine {
    /// Starts engines that are equally fast; `None`, which is said, if Python is not installed.
    pub fn start_alike<const N: usize>() -> Option<[Self; N]> {
        if !are_installed(&["python3"]) {
            return None;
        }
        let engines = std::array::from_fn(|_| {
            let mut engine = Self {
                address: address(),
                process: None,
            };
            engine.restart();
            engine
        });
        Some(engines)
    }

    /// Returns the address at which the engine listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the engine, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts the engine with an empty cache, again after [`SimulatedEngine::kill`], and waits until it listens.
    pub fn restart(&mut self) {
        self.kill();
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        let mut command = program("python3");
        command.args([PROGRAM, "--host", &host, "--port", &port.to_string()]);
        // A token takes half of the time of an engine in the experiments: tests are to be short.
        command.args(["--read", "60e-6", "--step", "3e-3"]);
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the engine starts");
        let process = self.process.insert(process);
        wait_until(&format!("an engine listens on {}", self.address), || {
            let ended = process.try_wait().expect("its state");
            assert!(ended.is_none(), "the engine ended with {ended:?}");
            std::net::TcpStream::connect(self.address).is_ok()
        });
    }

    /// Stops the engine where it is: the system accepts its connections, and nothing is answered.
    pub fn stop(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::STOP);
    }

    /// Lets the engine go on after [`SimulatedEngine::stop`].
    pub fn go_on(&self) {
        signal(self.process.as_ref().expect("it runs").id(), Signal::CONT);
    }

    /// Sets the speed of the engine from its next step on, as a multiple of that at the start.
    pub fn set_speed(&self, speed: f64) {
        let speed = speed.to_string();
        let mut wire = Wire::connect(self.address);
        wire.send(format!(
            "POST /capacity HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{speed}",
            speed.len()
        ));
        assert_eq!(wire.read_response().second_word(), "200");
    }
}

impl Drop for SimulatedEngine {
    fn drop(&mut self) {
        self.kill();
    }
}
