"""Reads lines of an access log in the combined format with the package apachelogs, which knows the format of
Apache httpd, and prints what it finds in each as a line of JSON.
"""

import json
import sys

from apachelogs import COMBINED, LogParser

parser = LogParser(COMBINED)
for line in sys.stdin:
    entry = parser.parse(line)
    print(
        json.dumps(
            {
                "host": entry.remote_host,
                "user": entry.remote_user,
                "time": entry.request_time.isoformat(),
                "request": entry.request_line,
                "status": entry.final_status,
                "bytes": entry.bytes_sent,
                "referer": entry.headers_in["Referer"],
                "agent": entry.headers_in["User-Agent"],
            }
        ),
        flush=True,
    )
