//! FTP rules: vsftpd, ProFTPD and Pure-FTPd behind, curl, lftp, tnftp and Python's ftplib in front.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::net::SocketAddr;

use evenkeel_e2e::balancer::Balancer;
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::ftp::{FtpServer, Kind, can_run};
use evenkeel_e2e::process::{installed, try_curl};

/// A balancer with the FTP rule `web` on both families.
fn balancer(members: &[SocketAddr], listen: &str, more: &str) -> Balancer {
    let members: Vec<_> = members
        .iter()
        .map(|member| format!("\"{member}\""))
        .collect();
    Balancer::start(&format!(
        "workers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [rule.web]\nlisten = \"{listen}:0\"\nprotocol = \"ftp\"\nmembers = [{}]\n{more}\n",
        members.join(", ")
    ))
}

/// A counter of the rule `web`.
fn count(balancer: &Balancer, name: &str, label: &str) -> u64 {
    let text = balancer.admin_get("/metrics");
    let line = format!("evenkeel_rule_{name}{{rule=\"web\",{label}}} ");
    let mut lines = text.text().lines();
    let value = lines.find_map(|known| known.strip_prefix(&line));
    value
        .unwrap_or_else(|| panic!("no {line}"))
        .parse()
        .unwrap()
}

fn content() -> Vec<u8> {
    (0..5 * 1024 * 1024u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// Members of all kinds, over both families.
fn servers() -> Vec<FtpServer> {
    let v4 = Kind::ALL.into_iter().map(FtpServer::start);
    v4.chain(Kind::ALL.into_iter().map(FtpServer::start_v6))
        .collect()
}

#[test]
fn curl_downloads_uploads_and_lists_in_all_ways() {
    if !can_run() || !installed(&["curl"]) {
        return;
    }
    let content = content();
    let folder = Folder::new();
    let file = folder.write("file", &content).display().to_string();
    let got = folder.join("got").display().to_string();
    for server in servers() {
        server.serve("file", &content);
        let (user, password) = server.kind.login();
        for listen in ["127.0.0.1", "[::1]"] {
            let balancer = balancer(&[server.address()], listen, "");
            let url = format!("ftp://{}", balancer.address("web"));
            let login = format!("{user}:{password}");
            let ways: &[&[&str]] = match listen {
                "127.0.0.1" => &[
                    &[],
                    &["--disable-epsv"],
                    &["-P", "-"],
                    &["-P", "-", "--disable-eprt"],
                ],
                _ => &[&[], &["-P", "-"]],
            };
            for (number, way) in ways.iter().enumerate() {
                let what = format!(
                    "{:?} at {} by {listen} {way:?}",
                    server.kind,
                    server.address()
                );
                let run = |more: &[&str]| {
                    let common = ["--fail", "-sSv", "--max-time", "50", "--user", &login];
                    let output = try_curl(&[&common[..], way, more].concat());
                    let complaint = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{what} {more:?}: {complaint}");
                    String::from_utf8_lossy(&output.stdout).into_owned()
                };
                run(&["--output", &got, &format!("{url}/file")]);
                assert!(folder.read("got") == content, "{what}");
                run(&["--upload-file", &file, &format!("{url}/up/x{number}")]);
                assert!(server.read(&format!("up/x{number}")) == content, "{what}");
                assert!(run(&[&format!("{url}/")]).contains("file"), "{what}");
            }
            let passive = count(
                &balancer,
                "ftp_data_connections_total",
                "kind=\"passive_in\"",
            );
            let active = count(
                &balancer,
                "ftp_data_connections_total",
                "kind=\"active_in\"",
            );
            assert_eq!(passive + active, ways.len() as u64);
            assert!(active > 0);
            let data = count(&balancer, "ftp_bytes_total", "of=\"data_in\"");
            assert_eq!(data, (ways.len() * content.len()) as u64);
        }
    }
}
