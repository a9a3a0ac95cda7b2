//! Rules below HTTP: TCP, FTP, the PROXY protocol, Unix sockets, clients' addresses.

mod ftp;
mod proxy_protocol;
mod tcp;
mod transparent;
mod unix_sockets;
