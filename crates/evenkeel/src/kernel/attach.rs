//! `evenkeel kernel attach`, `detach` and `status`.

#[cfg(not(feature = "bpf"))]
mod lacking {
    use crate::cli::kernel::{Attach, Detach, Status};
    use crate::failure::Failure;

    fn lacking<T>() -> Result<T, Failure> {
        Err(Failure::new(
            "this evenkeel was built without BPF; build it with `cargo build --features kernel` \
             (needs clang, libelf-dev, zlib1g-dev, pkg-config), or report the load of this \
             machine with `evenkeel agent`",
        ))
    }

    pub(crate) fn attach(_args: &Attach) -> Result<(), Failure> {
        lacking()
    }

    pub(crate) fn detach(_args: &Detach) -> Result<(), Failure> {
        lacking()
    }

    pub(crate) fn status(_args: &Status) -> Result<(), Failure> {
        lacking()
    }
}
#[cfg(not(feature = "bpf"))]
pub(super) use lacking::{attach, detach, status};
#[cfg(feature = "bpf")]
mod with {
    use std::path::PathBuf;

    use evenkeel_kernel::attach::{self as responder, Options};
    use evenkeel_kernel::bpf::BpfError;
    use evenkeel_kernel::{host, keys};
    use evenkeel_net::key_file;

    use crate::cli::kernel::{Attach, Detach, Mode, Status};
    use crate::failure::Failure;
    use crate::kernel::forwarding;
    use crate::output::print;

    fn cgroup(text: &str) -> Result<(u16, PathBuf), Failure> {
        let parsed = text.split_once('=').and_then(|(number, path)| {
            let path = PathBuf::from(path);
            Some((number.parse().ok()?, path)).filter(|(_, path)| path.is_absolute())
        });
        parsed.ok_or_else(|| {
            Failure::new(format!(
                "--cgroup {text}: a number, an equals sign and an absolute path are needed"
            ))
        })
    }

    pub(crate) fn attach(args: &Attach) -> Result<(), Failure> {
        let (Some(interface), Some(key_file)) = (&args.interface, &args.key_file) else {
            return Err(Failure::new("an interface and --key-file are needed"));
        };
        let allow = args
            .allow
            .iter()
            .map(|text| text.parse().map_err(Failure::of));
        let cgroups = args.cgroups.iter().map(|text| cgroup(text));
        let options = Options {
            interface: interface.clone(),
            folder: args.pin.folder.clone(),
            port: args.port,
            keys: key_file::load_parsed(key_file, keys::parse).map_err(Failure::of)?,
            allow: allow.collect::<Result<_, _>>()?,
            hosts: host::list_own_hosts(&args.hosts).map_err(Failure::of)?,
            ports: args.listen_ports.clone(),
            cgroups: cgroups.collect::<Result<_, _>>()?,
            rate: args.rate,
            mode: match args.mode {
                Mode::Auto => None,
                Mode::Native => Some(responder::Mode::Native),
                Mode::Generic => Some(responder::Mode::Generic),
                Mode::Tc => Some(responder::Mode::Tc),
            },
        };
        let mode = responder::attach(&options).map_err(|error| match error {
            BpfError::File(_) => Failure::of(error),
            _ => Failure::new(format!(
                "{error}; `evenkeel agent` reports the load of any machine"
            )),
        })?;
        print(format!(
            "{interface}: the kernel answers load queries on UDP port {} ({})\n",
            args.port,
            mode.in_words()
        ))
    }

    pub(crate) fn detach(args: &Detach) -> Result<(), Failure> {
        let Some(interface) = &args.interface else {
            return forwarding::detach(args);
        };
        if responder::detach(interface, args.pin.folder.as_deref()).map_err(Failure::of)? {
            print(format!("{interface}: detached\n"))
        } else {
            Err(none(interface))
        }
    }

    fn none(interface: &str) -> Failure {
        Failure::new(format!(
            "{interface}: no responder on this interface (if it was attached with --pin, use the same option here)"
        ))
    }

    pub(crate) fn status(args: &Status) -> Result<(), Failure> {
        let Some(interface) = &args.interface else {
            return Err(Failure::new("an interface is needed"));
        };
        let status = responder::status(interface, args.pin.folder.as_deref());
        let status = status.map_err(Failure::of)?;
        let status = status.ok_or_else(|| none(interface))?;
        print(if args.json {
            format!("{}\n", status.to_json(interface))
        } else {
            status.text()
        })
    }
}
#[cfg(feature = "bpf")]
pub(super) use with::{attach, detach, status};
