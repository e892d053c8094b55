"""Metrics of a run as JSON lines, written by a background thread so that a slow disk costs no step."""

import json
import threading
from pathlib import Path

Record = dict[str, object]


class MetricsLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.logged = 0
        self.records: list[Record] = []
        self.records_lock = threading.Lock()
        self.file_lock = threading.Lock()
        self.wake = threading.Event()
        threading.Thread(target=self.flush_forever, name="metrics", daemon=True).start()

    def log(self, record: Record) -> None:
        with self.records_lock:
            self.records.append(record)
            self.logged += 1
        if self.logged % 100 == 0:
            self.wake.set()

    def flush(self) -> None:
        with self.records_lock:
            records, self.records = self.records, []
        with self.file_lock, self.path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def flush_forever(self) -> None:
        while True:
            self.wake.wait(timeout=5.0)
            self.wake.clear()
            self.flush()
