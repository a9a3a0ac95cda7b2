//! Certificates for tests, and clients that speak TLS, by `openssl`.

use std::fs::{self, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::folder::Folder;
use crate::process::program;

/// A kind of key.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// ECDSA with P-256.
    Ecdsa,
    /// RSA with 2048 bits.
    Rsa,
}

/// Writes a secret at once and as a whole.
pub fn write_secret(folder: &Folder, name: &str, content: impl AsRef<[u8]>) {
    let fresh = folder.join(&format!("{name}.fresh"));
    fs::write(&fresh, content).expect("the file is written");
    fs::set_permissions(&fresh, Permissions::from_mode(0o600)).expect("its rights");
    fs::rename(fresh, folder.join(name)).expect("the file is moved");
}

fn openssl(folder: &Folder, arguments: &[&str]) {
    let mut openssl = program("openssl");
    openssl.args(arguments).current_dir(folder.path());
    let output = openssl.output().expect("openssl runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {complaint}"
    );
}

/// A certificate for `names` with its key, signed by itself or by the one in `by.pem`: `NAME.pem`,
/// from `days` on for a year.
pub fn make_certificate(folder: &Folder, name: &str, key: Key, names: &str, by: Option<&str>) {
    let (key_file, cert_file) = (format!("{name}.key.tmp"), format!("{name}.crt.tmp"));
    let (subject, names) = (
        format!("/O=Evenkeel tests/CN={name}"),
        format!("subjectAltName={names}"),
    );
    let mut arguments = vec!["req", "-x509", "-nodes", "-days", "365", "-newkey"];
    arguments.extend(match key {
        Key::Ecdsa => ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
        Key::Rsa => ["rsa", "-pkeyopt", "rsa_keygen_bits:2048"],
    });
    arguments.extend(["-keyout", &key_file, "-out", &cert_file, "-subj", &subject]);
    arguments.extend(["-addext", &names]);
    let by = by.map(|by| format!("{by}.pem"));
    if let Some(by) = &by {
        arguments.extend([
            "-CA",
            by,
            "-CAkey",
            by,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ]);
    }
    openssl(folder, &arguments);
    let both = [folder.read(&cert_file), folder.read(&key_file)].concat();
    write_secret(folder, &format!("{name}.pem"), both);
    folder.write(&format!("{name}.crt"), folder.read(&cert_file));
}

/// A certificate as [`certificate`] makes one, whose time was over in 2021.
pub fn make_expired_certificate(folder: &Folder, name: &str, names: &str, by: &str) {
    folder.write(
        "ca.cnf",
        "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\nnew_certs_dir = .\nserial = serial\n\
         default_md = sha256\npolicy = any\n[any]\ncommonName = supplied\n",
    );
    folder.write("index.txt", "");
    folder.write("names.ext", format!("subjectAltName={names}"));
    let (key, request, made) = (
        format!("{name}.key.tmp"),
        format!("{name}.csr.tmp"),
        format!("{name}.crt.tmp"),
    );
    let mut arguments = vec!["req", "-new", "-nodes", "-newkey", "ec"];
    arguments.extend(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    arguments.extend(["-keyout", &key, "-out", &request]);
    let subject = format!("/CN={name}");
    arguments.extend(["-subj", &subject]);
    openssl(folder, &arguments);
    let by = format!("{by}.pem");
    let mut arguments = vec![
        "ca",
        "-batch",
        "-notext",
        "-rand_serial",
        "-config",
        "ca.cnf",
    ];
    arguments.extend(["-cert", &by, "-keyfile", &by, "-extfile", "names.ext"]);
    arguments.extend(["-startdate", "200101000000Z", "-enddate", "210101000000Z"]);
    arguments.extend(["-in", &request, "-out", &made]);
    openssl(folder, &arguments);
    let both = [folder.read(&made), folder.read(&key)].concat();
    write_secret(folder, &format!("{name}.pem"), both);
}

/// A list of the authority in `BY.pem` that revokes these certificates (`NAME.crt`): its text.
pub fn make_revocation_list(folder: &Folder, by: &str, revoked: &[&str]) -> Vec<u8> {
    folder.write(
        "crl.cnf",
        "[ca]\ndefault_ca = own\n[own]\ndatabase = revoked.txt\ncrlnumber = number\n\
         default_md = sha256\ndefault_crl_days = 30\n",
    );
    folder.write("revoked.txt", "");
    folder.write("number", "01\n");
    let by = format!("{by}.pem");
    let common = ["ca", "-config", "crl.cnf", "-cert", &by, "-keyfile", &by];
    for name in revoked {
        let certificate = format!("{name}.crt");
        openssl(folder, &[&common[..], &["-revoke", &certificate]].concat());
    }
    let made = ["-gencrl", "-out", "list.crl.tmp"];
    openssl(folder, &[&common[..], &made].concat());
    folder.read("list.crl.tmp")
}

/// `openssl s_client` with an address: what it prints when it is given `input`.
pub fn s_client(address: SocketAddr, arguments: &[&str], input: &str) -> String {
    let mut client = program("openssl");
    client.args(["s_client", "-connect", &address.to_string()]);
    client.args(arguments);
    client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = client.spawn().expect("openssl runs");
    if let Some(mut stdin) = client.stdin.take() {
        // It may have ended for want of a connection.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = client.wait_with_output().expect("its output");
    let texts = [output.stdout, output.stderr];
    texts
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat()
}
