//! Rules below HTTP: TCP, UDP, FTP, the PROXY protocol, Unix sockets, clients' addresses.

mod ftp;
mod proxy_protocol;
mod tcp;
mod transparent;
mod udp;
mod unix_sockets;
