-- The evidence store: rows parsed out of one bundle. Raw files are the truth; all of this can be rebuilt from them.
-- Rank, host, group and time are NULL where no file says them. Text comes from the job and is to be read as data.
-- The comment behind a column is its documentation: the store attaches it to the column (duckdb_columns()).

CREATE TABLE ranks (
    host            VARCHAR,  -- host name the process was seen on
    job             VARCHAR,  -- identity of the job on this host: "<launcher>:<pid>" of its root process
    role            VARCHAR,  -- rank | launcher | dataloader_worker | compile_worker | helper | unreadable | gone
    rank            INTEGER,  -- global rank; of the owning rank for workers; NULL if nothing says it
    local_rank      INTEGER,  -- rank on its host
    world_size      INTEGER,  -- number of ranks the job expects
    pid             INTEGER,  -- process id in ddx's pid namespace
    ppid            INTEGER,  -- parent process id
    launcher        VARCHAR,  -- torchrun | spawn | accelerate | deepspeed | mpirun | ray | slurm | env
    state           VARCHAR,  -- kernel state letter: R S D T t Z, as in /proc/<pid>/stat
    cpu_percent     DOUBLE,   -- CPU used since the process started, percent of one core
    wall_s          DOUBLE,   -- seconds since the process started
    rss_bytes       BIGINT,   -- resident memory, bytes
    master          VARCHAR,  -- MASTER_ADDR:MASTER_PORT as the process has it
    command         VARCHAR,  -- command line, secrets redacted
    cwd             VARCHAR,  -- working directory
    stdout          VARCHAR,  -- where file descriptor 1 goes (path, pipe:[n], /dev/pts/n)
    stderr          VARCHAR,  -- where file descriptor 2 goes
    run_dir         VARCHAR,  -- DDX_RUN_DIR, if `ddx run` started the job
    python          VARCHAR,  -- interpreter executable
    debug           VARCHAR,  -- JSON object of the debug features that are on (variable: value)
    nodes           INTEGER,  -- of torchrun: hosts that have to come before any of them starts a rank; NULL for one host alone
    endpoint        VARCHAR,  -- of torchrun on several hosts: address:port where they meet, as its command has it
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE stack_threads (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank that owns the process
    pid             INTEGER,  -- process id
    role            VARCHAR,  -- role of the process, as in ranks; dead: read from the core file that it left
    snapshot        INTEGER,  -- 1, 2, …: which look
    taken_s         DOUBLE,   -- wall clock of the look, seconds since the epoch
    tid             BIGINT,   -- kernel thread id (or Python's thread id where the kernel's is unknown)
    thread          VARCHAR,  -- thread name
    is_main         BOOLEAN,  -- the thread that runs the training program
    running         BOOLEAN,  -- py-spy: the thread was on a CPU
    owns_gil        BOOLEAN,  -- py-spy: the thread held the GIL
    state           VARCHAR,  -- kernel state letter of the thread
    wchan           VARCHAR,  -- kernel function it sleeps in
    syscall         VARCHAR,  -- system call it is in, by name if known
    blocked_on      VARCHAR,  -- what that call's file descriptor is (pipe:[n], socket:[n], path)
    blocked_s       DOUBLE,   -- seconds since the thread last ran, before anything of ours touched it
    moved           BOOLEAN,  -- it ran between this look and the one before (context switches or CPU time)
    wakes           INTEGER,  -- how often it went to sleep between the two samples
    switched        BOOLEAN,  -- it went to sleep and woke between the two samples: more than burning CPU in one place
    activity        VARCHAR,  -- class of what it does: an `activity` of knowledge/frames.yaml
    operation       VARCHAR,  -- the collective or point-to-point operation, in torch's words
    contexts        VARCHAR,  -- JSON list: what encloses it (checkpoint, fsdp, ddp, pipeline, dataloader, …)
    phase           VARCHAR,  -- phase of training that library frames tell: a `phase` of knowledge/phases.yaml
    group_hint      VARCHAR,  -- what the frames betray of the process group (mesh axis, wrapper), else NULL
    user_file       VARCHAR,  -- innermost frame of the user's program: file
    user_line       INTEGER,  -- line
    user_function   VARCHAR,  -- function, qualified by its class where the source shows it
    user_source     VARCHAR,  -- text of the line
    user_stack      VARCHAR,  -- JSON list of [file, line, function] of all user frames, outermost first
    frames_key      VARCHAR,  -- identity of the whole normalised stack
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER,  -- of a file with the dumps of several ranks: its line that shows the place, 1-based; else NULL
    source_text     VARCHAR   -- what that line says; NULL where there is no frame
);

CREATE TABLE stack_frames (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    snapshot        INTEGER,  -- which look
    tid             BIGINT,   -- thread id
    depth           INTEGER,  -- 0 is the innermost frame
    file            VARCHAR,  -- full file name
    module          VARCHAR,  -- path from the package root ("torch/distributed/distributed_c10d.py"), for matching
    line            INTEGER,  -- line
    function        VARCHAR,  -- function, qualified by its class where the source shows it
    is_user         BOOLEAN,  -- the frame belongs to the user's program, not to a library
    code            VARCHAR,  -- text of the line, if the source could be read
    variables       VARCHAR,  -- JSON object: local variable → its repr, bounded; NULL unless they were asked for
    source_line     INTEGER   -- of a file with the dumps of several ranks: its line that shows the frame, 1-based; else NULL
);

CREATE TABLE outputs (
    host            VARCHAR,  -- host name
    path            VARCHAR,  -- file that ranks write their standard output to; or the address of a rank's debug server
    rank            INTEGER,  -- the rank that alone writes there; NULL: several do
    stepped         BOOLEAN,  -- it printed further steps, or recorded further collectives, between the first and the last sample; NULL: it names none
    counted         VARCHAR,  -- the line, without its numbers, in which it counts work of its own at both samples; NULL: none
    done_before     BIGINT,   -- how much of that work was done at the first sample
    done            BIGINT,   -- how much at the last
    total           BIGINT,   -- of how much
    repeated        BOOLEAN   -- the same work was counted before, and training steps came after it
);

CREATE TABLE wait_counters (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank
    counter         VARCHAR,  -- name of torch's wait counter
    active          BIGINT,   -- calls that are inside it now
    calls           BIGINT,   -- calls so far
    total_us        BIGINT,   -- time spent in it so far, microseconds
    longest_us      BIGINT,   -- its longest call that ended, microseconds
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE unread (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank whose process could not be read
    pid             INTEGER,  -- its process id
    reason          VARCHAR,  -- why not, in words
    remedy          VARCHAR   -- what to do about it
);

CREATE TABLE file_locks (
    host            VARCHAR,  -- host name
    waiter_pid      INTEGER,  -- process that waits for a lock on a file
    holder_pid      INTEGER,  -- process that holds it
    file            VARCHAR,  -- MAJOR:MINOR:INODE
    line            INTEGER,  -- the line of /proc/locks that shows the wait, 1-based
    quote           VARCHAR,  -- what it says
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE sources (
    host            VARCHAR,  -- host name
    file            VARCHAR,  -- full file name as the frames have it
    text            VARCHAR,  -- the program text, bounded; read when the stacks were taken
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE fr_dumps (
    dump            BIGINT,   -- identity of the dump: the same whenever it is read
    host            VARCHAR,  -- host name, NULL if the file does not say
    rank            INTEGER,  -- global rank, from the agent or the file name
    source          VARCHAR,  -- raw file of the bundle
    origin          VARCHAR,  -- agent | file | endpoint | exception | exit
    attempt         VARCHAR,  -- what files of one attempt of the job share: their directory and the name around the rank
    version         VARCHAR,  -- format version of the dump
    library         VARCHAR,  -- version of NCCL or its like, NULL if not recorded
    taken_ns        BIGINT,   -- wall clock when it was taken, ns since the epoch; NULL if unknown
    written_ns      BIGINT,   -- when its file was last written to: it was taken then or, if the file is a copy, before
    latest_ns       BIGINT,   -- the latest time that the dump itself mentions: it was taken then or later
    last_call_ns    BIGINT,   -- when the latest operation in it was called
    entries         INTEGER,  -- number of entries in the dump
    first_record    BIGINT,   -- smallest record id: above 0 means older entries are gone
    last_record     BIGINT,   -- largest record id
    with_frames     BOOLEAN,  -- entries carry Python frames
    only_active     BOOLEAN,  -- completed entries were left out
    backend         VARCHAR,  -- nccl | gloo | xccl | …, from the entries
    world_size      INTEGER   -- as far as a group or the agent says it
);

CREATE TABLE fr_groups (
    group_id        BIGINT PRIMARY KEY,  -- identity of the process group, made of its key
    group_key       VARCHAR,  -- identity across ranks: name and members
    name            VARCHAR,  -- process group name
    description     VARCHAR,  -- description ("default_pg", "mesh_tp", …)
    members         INTEGER[] -- global ranks in group order; NULL if no dump lists them
);

CREATE TABLE fr_memberships (
    membership      BIGINT,   -- identity of one dump's view of one group
    dump            BIGINT,   -- the dump
    group_id        BIGINT,   -- the group
    pg_id           VARCHAR,  -- the process's own counter of groups, not comparable between ranks
    last_enqueued   BIGINT,   -- sequence number of the last collective this rank enqueued
    last_started    BIGINT,   -- sequence number of the last collective that started on its device
    last_completed  BIGINT    -- sequence number of the last collective this rank completed
);

CREATE TABLE fr_calls (
    call            BIGINT PRIMARY KEY,  -- identity of the call: equal calls of all ranks share it
    backend         VARCHAR,  -- nccl, gloo, …
    op              VARCHAR,  -- all_reduce, broadcast, send, … without the backend's prefix
    is_p2p          BOOLEAN,  -- point-to-point operation
    peer            VARCHAR,  -- "1->2" of a point-to-point operation, group-local ranks
    input_sizes     VARCHAR,  -- JSON list of shapes, elements
    input_dtypes    VARCHAR,  -- JSON list
    output_sizes    VARCHAR,  -- JSON list of shapes, elements
    output_dtypes   VARCHAR,  -- JSON list
    input_splits    VARCHAR,  -- JSON list: elements of dimension 0 to each rank, of an all_to_all (format 2.11)
    output_splits   VARCHAR,  -- JSON list: elements of dimension 0 from each rank
    timeout_ms      BIGINT    -- limit of the operation
);

CREATE TABLE fr_sites (
    site            BIGINT PRIMARY KEY,  -- identity of the call path through the user's program
    user_file       VARCHAR,  -- call site: innermost user frame
    user_line       INTEGER,  -- its line
    user_function   VARCHAR,  -- its function
    path            VARCHAR,  -- identity of the whole user call path, innermost first
    contexts        VARCHAR   -- JSON list: what encloses the call (checkpoint, fsdp, ddp, evaluation, …)
);

CREATE TABLE fr_entries (
    membership      BIGINT,   -- the dump and the group
    record_id       BIGINT,   -- per process, not comparable between ranks
    seq             BIGINT,   -- collective sequence number in its group
    p2p_seq         BIGINT,   -- point-to-point sequence number
    op_id           BIGINT,   -- operations of any kind in this group so far
    call            BIGINT,   -- what was called
    site            BIGINT,   -- where from; NULL without frames
    state           VARCHAR,  -- scheduled | started | completed as recorded (Gloo: always scheduled)
    done            BOOLEAN,  -- completed, by its state or its group's counter (Gloo: or retired)
    retired         BOOLEAN,  -- no longer watched: done or, if not, given up by its watchdog after a timeout or an error
    created_ns      BIGINT,   -- wall clock when it was enqueued, ns since the epoch
    started_ns      BIGINT,   -- wall clock when its start was noticed
    completed_ns    BIGINT,   -- wall clock when completion was noticed
    duration_ms     DOUBLE    -- time on the device, where timing was on
);

CREATE VIEW groups AS
    SELECT d.host, d.rank, g.group_key, g.name, g.description, g.members, m.last_enqueued, m.last_started,
        m.last_completed, d.source
    FROM fr_memberships m JOIN fr_groups g USING (group_id) JOIN fr_dumps d USING (dump);

CREATE VIEW collectives AS
    SELECT d.host, d.rank, d.source, e.record_id, g.group_key, e.seq, e.p2p_seq, e.op_id, c.is_p2p, c.backend, c.op,
        c.peer, c.input_sizes, c.input_dtypes, c.output_sizes, c.output_dtypes, e.state, e.done, e.created_ns,
        e.started_ns, e.completed_ns, e.duration_ms, c.timeout_ms, s.user_file, s.user_line, s.user_function,
        s.path AS site
    FROM fr_entries e JOIN fr_memberships m USING (membership) JOIN fr_groups g USING (group_id)
        JOIN fr_dumps d USING (dump) JOIN fr_calls c USING (call) LEFT JOIN fr_sites s USING (site);

CREATE TABLE materials (
    path            VARCHAR,  -- a file from the user or found, as it is called: job.tar!logs/rank3.log is a member of an archive
    kinds           VARCHAR,  -- what it holds, which can be several things; NULL: nothing that is known
    rank            INTEGER,  -- global rank, if the name says it
    host            VARCHAR,  -- host name, if the name says it, or of a file of a known host
    attempt         INTEGER,  -- of the launcher, if the path says it: 0-based
    size_bytes      BIGINT,   -- its size, unpacked; NULL if nobody noted it
    lines           BIGINT,   -- line ends, of a text that was read whole
    why_not_read    VARCHAR,  -- why it was not read, or not whole; NULL if it was
    written_ns      BIGINT,   -- when it was last written to, ns since the epoch; of a copy, perhaps when it was copied
    source          VARCHAR   -- what evidence names
);

CREATE TABLE kept_lines (
    path            VARCHAR,  -- the text it stands in, as in materials
    line            BIGINT,   -- number, 1-based
    text            VARCHAR,  -- as it stands there, without colours; the beginning of a long one
    lines           BIGINT,   -- how many lines the text has
    template        VARCHAR,  -- its words without numbers and identifiers: what lines of one kind share
    times           BIGINT,   -- how many lines of the text are of this template
    alike           BIGINT,   -- and how many differ from it at most in words that differ in many lines
    rarity          DOUBLE,   -- 0 (each line is like it) to 1 (nothing like it stands there)
    known           BOOLEAN,  -- some reader of logs may take it: a traceback, a launcher's word, a library's message
    source          VARCHAR   -- what evidence names
);

CREATE TABLE logs (
    host            VARCHAR,  -- host name
    path            VARCHAR,  -- the file on the host
    cut             BOOLEAN,  -- its end could not be read: what its ranks printed last is not known
    rank            INTEGER,  -- global rank, if it is the log of one rank
    left_out        BOOLEAN,  -- it is from an earlier run or from another job than the other logs
    first_s         DOUBLE,   -- first time in a job's log, seconds since the epoch, in its host's clock
    last_s          DOUBLE,   -- last time in it, likewise
    year_known      BOOLEAN,  -- whether any of the logs states the year; if not, that of first_s and last_s is arbitrary
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE log_events (
    host            VARCHAR,  -- host name
    rank            INTEGER,  -- global rank, if the line, its prefix or the file name says it
    pid             INTEGER,  -- process id, if the text says it
    kind            VARCHAR,  -- traceback | failure_summary | exit | watchdog | gloo | signature | step | value | fatal_stack | error_file
    code            VARCHAR,  -- signature id, exception type or signal name
    text            VARCHAR,  -- the message, bounded
    attempt         INTEGER,  -- restart attempt, if the text says it
    superseded      BOOLEAN,  -- it is of an earlier attempt: started again below it, or long over when the job waited
    time_s          DOUBLE,   -- wall clock of the line, seconds since the epoch, in its host's clock
    exit_code       INTEGER,  -- exit code; negative: killed by that signal
    file            VARCHAR,  -- user frame of a traceback or a fatal stack: file
    line            INTEGER,  -- line
    function        VARCHAR,  -- function
    code_line       VARCHAR,  -- text of that line
    frames          VARCHAR,  -- JSON list of "file:line function", outermost first
    details         VARCHAR,  -- JSON object: named groups of the signature, chained causes, seq, op, …
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- first line in that file, 1-based
);

-- What the watchdogs of ranks reported of a collective or of how far they got: one row a line, as it stands there.
CREATE VIEW watchdog_reports AS
    SELECT host, rank, code,
        nullif(regexp_extract(details->>'quote', 'PG (?:ID [0-9]+ PG GUID )?([^\s()\]]+)', 1), '') AS group_key,
        TRY_CAST(details->>'seq' AS BIGINT) AS seq, details->>'operation' AS op,
        TRY_CAST(details->>'numel_in' AS BIGINT) AS numel_in, TRY_CAST(details->>'numel_out' AS BIGINT) AS numel_out,
        TRY_CAST(details->>'timeout_ms' AS BIGINT) AS timeout_ms,
        TRY_CAST(details->>'elapsed_ms' AS BIGINT) AS elapsed_ms,
        TRY_CAST(details->>'last_enqueued' AS BIGINT) AS last_enqueued,
        TRY_CAST(details->>'last_completed' AS BIGINT) AS last_completed, attempt, source, source_line
    FROM log_events WHERE kind IN ('watchdog', 'gloo')
        AND coalesce(details->>'operation', details->>'timeout_ms', details->>'last_enqueued') IS NOT NULL;

CREATE TABLE host_facts (
    host            VARCHAR,  -- host name, if a prompt, the line or the file's name says it
    topic           VARCHAR,  -- kernel | gpu | gpu_query | gpu_process | gpu_trouble | gpu_link | gpu_p2p | nic_link | nvlink | service | disk | inodes | limit | memory | cgroup | ib_port | gid | port_errors | interface | acs | pcie_link | ping | tcp_socket | tcp_established | tcp_counters | nic_counters | route | host_name | process | ptrace | cpu_quota | pids | pci_device | look | job | rank_process | held_process | unavailable | package | job_state | pod_state | node_state | health_check | hang_flag | oom_kills | targets_down | metric_changed | traffic (bytes that an RDMA port, or all NVLinks of a GPU, carried so far)
    subject         VARCHAR,  -- which one: a device, bus id, mount point, interface, limit, job; of kernel: what was logged
    facts           VARCHAR,  -- JSON object: the values, units in their names
    text            VARCHAR,  -- the words that say it, bounded
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based; NULL in the tail of a long file
);

CREATE TABLE asked_hosts (
    target          VARCHAR,  -- one of many hosts that were asked at a time, as whoever asked calls it
    host            VARCHAR,  -- its own name, which its rows carry; NULL if it said nothing
    state           VARCHAR,  -- answered | in_part | unreachable | refused | silent | garbled | not_permitted | unknown_name | no_ddx | not_asked
    reason          VARCHAR,  -- why it did not answer, or not wholly
    remedy          VARCHAR,  -- what to do about it
    jobs            INTEGER,  -- distributed jobs that run there
    clock_low_s     DOUBLE,   -- seconds by which its clock is ahead of the asking one, at least
    clock_high_s    DOUBLE,   -- seconds by which its clock is ahead, at most
    seconds         DOUBLE,   -- from the question to the end of the answer
    size_bytes      BIGINT    -- of its answer, packed
);

CREATE TABLE notes (
    quote           VARCHAR,  -- the first line of what somebody wrote about the job, verbatim, bounded
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- 1-based
);

CREATE TABLE text_facts (
    code            VARCHAR,  -- finding code; one that begins with _ is a part of a finding
    severity        VARCHAR,  -- info, notice, warning, failure
    ranks           VARCHAR,  -- JSON list of the ranks that it names
    summary         VARCHAR,  -- what was seen, in words
    attributes      VARCHAR,  -- JSON object
    quote           VARCHAR,  -- the line, verbatim, bounded
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- 1-based
);

CREATE TABLE nccl_processes (
    host            VARCHAR,  -- host name as NCCL prints it; NULL for a banner that names no process
    pid             INTEGER,  -- process id as NCCL prints it: in a container, in its own pid namespace
    rank_label      INTEGER,  -- rank that a launcher's label or the file's name says
    version         VARCHAR,  -- NCCL version
    cuda            VARCHAR,  -- CUDA version that NCCL was built with
    driver          INTEGER,  -- newest CUDA version that the driver knows, as 1000 * major + 10 * minor
    ofi             VARCHAR,  -- version of the plugin aws-ofi-nccl
    network         VARCHAR,  -- network that NCCL chose: IB, Socket, a plugin's name
    interface       VARCHAR,  -- network interface of the bootstrap
    address         VARCHAR,  -- its address
    devices         VARCHAR,  -- network devices that NCCL found, as printed
    error_code      INTEGER,  -- first error a function of NCCL returned: 1 CUDA, 2 system, 3 internal, 4 argument, 5 usage, 6 remote
    error_at        VARCHAR,  -- file:line in NCCL's source of that return
    cut             BOOLEAN,  -- its log ends within a line: what it wrote last is still in a buffer
    source          VARCHAR   -- raw file of the bundle in which it appears first
);

CREATE TABLE nccl_facts (
    host            VARCHAR,  -- host name; NULL for a banner that names no process
    pid             INTEGER,  -- process id
    fact            VARCHAR,  -- version | driver | ofi | network | interface | devices: that column of nccl_processes; no_rdma: NCCL found no RDMA device
    quote           VARCHAR,  -- the line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based; NULL where the file's beginning was not read
);

CREATE TABLE nccl_ranks (
    communicator    VARCHAR,  -- identity across processes: commId; of a split without one, parent/number.color; #n: used again
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    pointer         VARCHAR,  -- the communicator's address in its process
    rank            INTEGER,  -- rank in this communicator
    nranks          INTEGER,  -- size of the communicator
    cuda_device     INTEGER,  -- CUDA device in the process
    nvml_device     INTEGER,  -- GPU as NVML counts it on the host
    bus_id          VARCHAR,  -- PCI bus id of the GPU, hexadecimal
    api             VARCHAR,  -- function that made it
    parent          VARCHAR,  -- communicator that it was split from
    color           INTEGER,  -- color of the split
    key             INTEGER,  -- key of the split
    started         BOOLEAN,  -- the start of its set-up is in the log
    completed       BOOLEAN,  -- so is its end
    ended           VARCHAR,  -- Destroy | Abort | Revoke, with START if only its start is in the log
    stage           VARCHAR,  -- how far the set-up came: bootstrap | graphs | connecting | rings_connected | trees_connected | channels_ready | complete
    total_s         DOUBLE,   -- duration of the set-up
    timings         VARCHAR,  -- JSON object: seconds by phase of the set-up
    pxn             BOOLEAN,  -- rings go through network devices of other GPUs
    gdr             BOOLEAN,  -- rings use GPUDirect RDMA
    coll_channels   INTEGER,  -- channels for collectives
    nvls_channels   INTEGER,  -- channels for NVLink SHARP
    p2p_channels    INTEGER,  -- channels for sends and receives
    quote           VARCHAR,  -- last line of its set-up
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_edges (
    communicator    VARCHAR,  -- the communicator
    host            VARCHAR,  -- host of the process that printed it
    pid             INTEGER,  -- that process
    source_rank     INTEGER,  -- sender, rank in the communicator
    target_rank     INTEGER,  -- receiver
    direction       VARCHAR,  -- send | receive: which end printed it, of connections through the network
    transport       VARCHAR,  -- p2p | p2p_indirect | shm | net | other
    via             VARCHAR,  -- as printed: P2P/CUMEM, SHM/direct/direct, NET/IB/0/GDRDMA, …
    network         VARCHAR,  -- IB, Socket, a plugin's name
    device          INTEGER,  -- network device
    gpudirect       BOOLEAN,  -- of the network: straight from and to the GPU's memory
    proxy_rank      INTEGER,  -- rank whose network device is used, if it is not the rank's own (PXN)
    channels        INTEGER,  -- so many channels of this kind between the two
    quote           VARCHAR,  -- the first line of it
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_graphs (
    communicator    VARCHAR,  -- the communicator
    host            VARCHAR,  -- host of the process that printed it
    pid             INTEGER,  -- that process
    kind            VARCHAR,  -- ring | ring_cut (only its beginning was printed) | ring_part | trees
    channel         INTEGER,  -- channel of a ring
    graph           VARCHAR,  -- ranks of a ring in order; of ring_part the rank before, the rank, the one behind; trees as printed
    quote           VARCHAR,  -- the line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_choices (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    operation       VARCHAR,  -- AllReduce, AllGather, …, as NCCL prints it
    algorithm       VARCHAR,  -- RING, TREE, NVLS, …
    protocol        VARCHAR,  -- SIMPLE, LL, LL128
    channels        INTEGER,  -- channels of the first such operation
    times           BIGINT,   -- how many of them
    least_bytes     BIGINT,   -- size of the smallest
    most_bytes      BIGINT,   -- and of the largest
    quote           VARCHAR,  -- the first line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_settings (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    variable        VARCHAR,  -- variable that NCCL took from the environment or its configuration file
    value           VARCHAR,  -- its value as NCCL understood it
    quote           VARCHAR,  -- the line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_warnings (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    device          INTEGER,  -- CUDA device in the process
    code_file       VARCHAR,  -- file of NCCL's source that warned
    code_line       INTEGER,  -- its line
    function        VARCHAR,  -- its function (2.30 and later)
    text            VARCHAR,  -- the message, bounded
    times           INTEGER,  -- how many messages that differ in numbers only
    time            VARCHAR,  -- time of the first, as printed (2.26 and later)
    quote           VARCHAR,  -- the line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_streams (
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    communicator    VARCHAR,  -- the communicator; NULL where the log does not hold how it was made
    pointer         VARCHAR,  -- its address in the process
    rank            INTEGER,  -- rank in it
    nranks          INTEGER,  -- size of it
    operations      BIGINT,   -- lines of operations: enqueued, which says nothing of their end
    p2p             BIGINT,   -- of them sends and receives
    names           VARCHAR,  -- JSON object: how many of each operation
    peers           VARCHAR,  -- JSON object: how many sends and receives, by "Send <peer>" and "Recv <peer>"
    first_op        BIGINT,   -- first opCount that was read
    last_op         BIGINT,   -- last opCount
    gap             BOOLEAN,  -- the middle of the log was not read
    cut             BOOLEAN,  -- the log ends within a line
    ended           VARCHAR,  -- as in nccl_ranks
    last_line       INTEGER,  -- line of the last operation, 1-based
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE nccl_op_sums (
    communicator    VARCHAR,  -- the communicator
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    rank            INTEGER,  -- rank in the communicator
    bucket          BIGINT,   -- opCount divided by 128
    operations      BIGINT,   -- operations in it
    first_op        BIGINT,   -- first opCount in it
    last_op         BIGINT,   -- last opCount in it
    checksum        BIGINT    -- over operation, count, data type, reduction, root and opCount of all of them
);

CREATE TABLE nccl_ops (
    communicator    VARCHAR,  -- the communicator; NULL where the log does not hold how it was made
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    rank            INTEGER,  -- rank in the communicator
    pointer         VARCHAR,  -- its address in the process
    op_count        BIGINT,   -- launch: operations of a group share it
    name            VARCHAR,  -- AllReduce, AllGather, …, as NCCL prints it
    count           BIGINT,   -- elements, as the call had them
    datatype        INTEGER,  -- ncclDataType_t
    reduction       INTEGER,  -- ncclRedOp_t; 5: one of the program's own
    root            INTEGER,  -- root; of Send and Recv the peer
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_ras (
    communicator    VARCHAR,  -- the communicator's hash; NULL for what is about processes
    group_number    VARCHAR,  -- "#0-0": how the text refers to it
    nranks          INTEGER,  -- size of the communicator
    status          VARCHAR,  -- MISMATCH | INCOMPLETE | ERROR | DEAD | TIMEOUT | OK
    what            VARCHAR,  -- operations (of JSON also those that all launched as often) | status | async_error | missing | dead | summary
    operation       VARCHAR,  -- operation that was counted (2.26 and later)
    ranks           INTEGER[], -- ranks it is about, as far as RAS lists them
    value           VARCHAR,  -- launches, status or error of these ranks
    many            INTEGER,  -- how many ranks or processes it is about, listed or not
    host            VARCHAR,  -- node of a process
    pid             INTEGER,  -- process id
    version         VARCHAR,  -- NCCL version
    taken_s         DOUBLE,   -- when it was asked, seconds since the epoch; of a brought file what JSON says by a clock of the job's; else NULL
    quote           VARCHAR,  -- the line
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE nccl_ras_members (
    communicator    VARCHAR,  -- the communicator's hash
    nranks          INTEGER,  -- its size
    rank            INTEGER,  -- rank in the communicator
    host            VARCHAR,  -- address of its host, as NCCL has it
    pid             INTEGER,  -- process id there
    gpu             INTEGER,  -- NVML's index of its GPU; NULL in the text form
    state           VARCHAR,  -- listed | missing (does not answer) | dead (for 60 s)
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE nccl_finished (
    communicator    VARCHAR,  -- the communicator's hash
    nranks          INTEGER,  -- its size
    rank            INTEGER,  -- rank in the communicator
    host            VARCHAR,  -- host name, as NCCL Inspector wrote it
    pid             INTEGER,  -- process id there
    operation       VARCHAR,  -- AllReduce, AllGather, …, as NCCL prints it
    last_sn         BIGINT,   -- highest number (coll_sn, from 0 per communicator and operation) that it finished and wrote
    is_last         BOOLEAN,  -- its last line of the communicator is about this operation
    writes_all      BOOLEAN,  -- this version writes every operation, and not only the last one of each interval
    last_s          DOUBLE,   -- when its last line of the communicator was written, seconds since the epoch by its host's clock
    longest_gap_s   DOUBLE,   -- longest time between two of its lines of the communicator, seconds; NULL of fewer than three
    ends_s          DOUBLE,   -- when the last line of the file was written, of any communicator
    quote           VARCHAR,  -- of the last line about the operation, what was finished
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based; NULL where only its end was read
);

CREATE TABLE env_values (
    environment     VARCHAR,  -- identity of the environment: the raw file and its place in it, or host and process
    kind            VARCHAR,  -- process | listing (printed by one) | manifest | script | text (a command in a log or notes)
    label           VARCHAR,  -- whose it is, for a person: rank 3, node1, train.sbatch
    whole           BOOLEAN,  -- all of the environment was seen: what is not in it is not set
    host            VARCHAR,  -- host name, NULL if nothing says it
    rank            INTEGER,  -- global rank
    pid             INTEGER,  -- process id
    job             VARCHAR,  -- "<launcher>:<pid>" of its root process, for processes
    name            VARCHAR,  -- the variable; only those that bear on distributed training are kept
    value           VARCHAR,  -- its value, secrets redacted; NULL if the text does not say it
    shown           VARCHAR,  -- the value as the text has it
    certain         BOOLEAN,  -- false: set under a condition
    exported        BOOLEAN,  -- false: assigned in a script and not handed on
    on_each_host    BOOLEAN,  -- set by a command that runs on every host: what it asks of its host differs there
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE launch_options (
    environment     VARCHAR,  -- the script, text or process that it is of, as in env_values
    kind            VARCHAR,  -- as in env_values
    label           VARCHAR,  -- as in env_values
    host            VARCHAR,  -- host name, NULL if nothing says it
    job             VARCHAR,  -- as in env_values
    command         INTEGER,  -- which command, from 1; 0: directives of the batch script
    layer           INTEGER,  -- which program of the command, 0 is the outermost
    tool            VARCHAR,  -- srun, torchrun, docker, …; program: what is started in the end; sbatch: directives
    program         VARCHAR,  -- name of what is started in the end, or the container's image
    name            VARCHAR,  -- option, without dashes; NULL for a program without options
    value           VARCHAR,  -- its value, secrets redacted; NULL if it has none or the text does not say it
    text            VARCHAR,  -- the option as it stands there
    certain         BOOLEAN,  -- false: started under a condition
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE env_versions (
    library         VARCHAR,  -- torch | nccl
    version         VARCHAR,  -- as far as the text names it
    host            VARCHAR,  -- host name, NULL if nothing says it
    quote           VARCHAR,  -- the words it rests on
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE mesh_settings (
    plan            VARCHAR,  -- identity of what sets the mesh: a file and the place in it, typed, recorded groups
    framework       VARCHAR,  -- whose degrees they are, as in knowledge/mesh_orders.yaml; as-written: the order they stand in; NULL: unknown
    label           VARCHAR,  -- which of several meshes of the job: actor, critic, …
    name            VARCHAR,  -- a dimension (tp, dp_shard, …), or world_size, gpus_per_host, dealt_to_hosts (hosts over which ranks are dealt in turn), heads, kv_heads, layers, experts, seq_len; of AReaL claimed_gpus, cluster_hosts, cluster_gpus
    value           BIGINT,   -- its size in ranks, -1: what is left of the world; of the others the number, seq_len in tokens
    text            VARCHAR,  -- the setting as it stands there
    source          VARCHAR,  -- raw file of the bundle, table key, or option of ddx
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE mesh_questions (
    kind            VARCHAR,  -- rank | members | group: what somebody asked about
    value           VARCHAR   -- a rank, ranks as in "0-7, 9", or the name or description of a process group
);

CREATE TABLE mesh (
    plan            VARCHAR,  -- what sets this mesh, as in mesh_settings
    rank            INTEGER,  -- global rank
    dimension       VARCHAR,  -- dimension, of those that multiply to the world
    coordinate      INTEGER,  -- where the rank stands in it, from 0
    host_index      INTEGER   -- the rank's host, from 0 in the launcher's order; NULL: nothing says where ranks are
);

CREATE TABLE preflight_runs (
    run             VARCHAR,  -- identity of the run: the directory of its results
    command         VARCHAR,  -- what was started, secrets redacted
    state           VARCHAR,  -- ended | failed (the launcher's exit code) | expired (nothing moved for a step's deadline)
    exit_code       INTEGER,  -- of the launcher, minus the signal that killed it; NULL if it still ran
    wall_s          DOUBLE,   -- seconds from the start to the end
    quiet_s         DOUBLE,   -- expired: seconds in which no rank moved
    bundle          VARCHAR,  -- not ended well: what was captured of it
    verdict         VARCHAR,  -- of the diagnosis of that bundle
    cause           VARCHAR,  -- its first cause
    cause_title     VARCHAR,  -- title of that cause
    culprits        INTEGER[], -- ranks that it blames
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE preflight_ranks (
    run             VARCHAR,  -- as in preflight_runs; for nccl-tests the file and its line
    rank            INTEGER,  -- global rank
    world_size      INTEGER,  -- ranks of the run
    local_rank      INTEGER,  -- rank on its host
    local_world_size INTEGER, -- ranks on its host, if the launcher says so
    host            VARCHAR,  -- host name
    pid             INTEGER,  -- process id
    backend         VARCHAR,  -- nccl | gloo
    device          VARCHAR,  -- cpu, cuda:0, …
    device_name     VARCHAR,  -- name of its GPU
    device_id       VARCHAR,  -- UUID of its GPU
    torch           VARCHAR,  -- version of torch
    nccl            VARCHAR,  -- version of NCCL
    cpus            INTEGER,  -- CPUs that it may use
    nic_gb_per_s    VARCHAR,  -- JSON list: rates of the RDMA ports of its host, 1e9 bytes a second
    clock_offset_s  DOUBLE,   -- its wall clock minus rank 0's
    clock_error_s   DOUBLE,   -- bound of the error of that
    finished        BOOLEAN,  -- it came to its end
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE preflight_steps (
    run             VARCHAR,  -- as in preflight_ranks
    rank            INTEGER,  -- global rank; NULL for nccl-tests, whose figures are of all ranks
    step            INTEGER,  -- number of the step, the same on all ranks
    operation       VARCHAR,  -- all_reduce, …, sendrecv (around the ring), pair, init_process_group, equal_work, …
    group_name      VARCHAR,  -- world, or the dimension of the mesh; NULL: not an operation of a group
    members         INTEGER[], -- global ranks of a sub-group; empty for the world
    group_size      INTEGER,  -- how many ranks take part
    dtype           VARCHAR,  -- data type
    bytes           BIGINT,   -- the larger one of a rank's input and output: what nccl-tests calls size
    peer            INTEGER,  -- of a pair: the other rank
    state           VARCHAR,  -- begun (and not ended) | ended | skipped (the backend lacks it) | failed
    begun_at_s      DOUBLE,   -- wall clock of the rank when it came to the step, seconds since the epoch
    time_s          DOUBLE,   -- seconds of one operation, mean of the iterations
    iterations      INTEGER,  -- how many were timed
    algbw_gb_per_s  DOUBLE,   -- bytes / time, 1e9 bytes a second
    busbw_gb_per_s  DOUBLE,   -- bus bandwidth as nccl-tests define it, 1e9 bytes a second
    wrong           BIGINT,   -- elements that are not what they have to be; NULL if not compared
    elements        BIGINT,   -- elements that were compared
    wrong_index     BIGINT,   -- the first wrong one
    got             VARCHAR,  -- its value
    expected        VARCHAR,  -- what it has to be
    origins         INTEGER[], -- global ranks from which the wrong ones came, as far as the operation tells
    error           VARCHAR,  -- why it failed
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE preflight_rounds (
    run             VARCHAR,  -- as in preflight_ranks
    rank            INTEGER,  -- global rank
    round           INTEGER,  -- number of the round
    compute_s       DOUBLE,   -- seconds for work that is equal on all ranks
    cpu_s           DOUBLE,   -- of these, seconds on a CPU
    arrived_at_s    DOUBLE,   -- wall clock of the rank when it came to the collective behind the work
    waited_s        DOUBLE    -- seconds in that collective: nearly nothing for whoever comes last
);

CREATE TABLE network_checks (
    host            VARCHAR,  -- host that tried
    peer            VARCHAR,  -- name or address as it was given; NULL of a port of this host
    address         VARCHAR,  -- address that was tried
    port            INTEGER,  -- TCP port
    what            VARCHAR,  -- name | tcp | listener | ping | size | iperf3 | perftest
    outcome         VARCHAR,  -- tcp: open | refused | timed_out | no_route | closed | failed; name: resolved | unresolved; listener: held; ping, size: all | some | silent | too_long_here | too_long_on_way | unreachable | unable; iperf3, perftest: measured | failed
    facts           VARCHAR,  -- JSON object: what else is known, units in the names
    text            VARCHAR,  -- the words that say it, bounded
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE network_flows (
    capture         VARCHAR,  -- file with the packets
    client          VARCHAR,  -- address:port of the end that began, or that is seen first
    server          VARCHAR,  -- address:port of the other end
    first_s         DOUBLE,   -- seconds from the first packet of the capture to the first of the connection
    last_s          DOUBLE,   -- seconds to its last packet
    packets         BIGINT,   -- of both directions; captured behind an adapter that joins packets, fewer than on the wire
    with_data       BIGINT,   -- of these, packets with data
    client_again    BIGINT,   -- packets that the client sent again
    server_again    BIGINT,   -- packets that the server sent again
    duplicate_acks  BIGINT,   -- acknowledgements of the same byte: something before it was missing
    client_zero_windows BIGINT, -- times at which the client let its peer send nothing more
    server_zero_windows BIGINT, -- times at which the server did
    client_resets   BIGINT,   -- resets that the client sent
    server_resets   BIGINT,   -- resets that the server sent
    syns            BIGINT,   -- times at which the client asked for the connection
    setup           VARCHAR,  -- refused (answered by a reset) | unanswered (asked more than once, no packet came back) | made | unseen
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE trace_ranks (
    rank            INTEGER,  -- global rank, as the trace or its file's name says
    host            VARCHAR,  -- host name, as the trace says
    world_size      INTEGER,  -- number of ranks
    device          VARCHAR,  -- gpu: kernels were recorded, and computing is what they do; cpu: computing is what operators do
    events          BIGINT,   -- events in the trace
    steps_by        VARCHAR,  -- what marks its steps: profiler | range (NVTX ranges of the program that number them) | optimizer (numbers then count within this trace alone)
    pid             INTEGER,  -- process, if the trace's file holds several and says no ranks
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE trace_steps (
    rank            INTEGER,  -- global rank
    pid             INTEGER,  -- process, as in trace_ranks
    step            BIGINT,   -- number of the step in the profiler's schedule or in its range; NULL: the trace marks no steps, and this is all of it
    start_ns        BIGINT,   -- begin, ns since the epoch on the clock of the rank
    end_ns          BIGINT,   -- end
    step_ns         BIGINT,   -- how long it took; the six that follow add up to it
    compute_ns      BIGINT,   -- something computes
    exposed_ns      BIGINT,   -- nothing computes, and a collective or transfer is under way
    copy_ns         BIGINT,   -- neither, and memory is copied
    data_ns         BIGINT,   -- the main process fetches a batch and nothing else happens (cpu: whatever else happens)
    wait_ns         BIGINT,   -- the GPU has nothing to do after the host waited for it
    host_ns         BIGINT,   -- the rest: the GPU, or the operators, have nothing to do
    communication_ns BIGINT,  -- a collective or transfer is under way, hidden or not
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE trace_collectives (
    rank            INTEGER,  -- global rank
    step            BIGINT,   -- step in which it began, as in trace_steps
    op              VARCHAR,  -- all_reduce, all_gather, …, in torch's words
    size_bytes      BIGINT,   -- size as nccl-tests counts it; NULL if the trace does not say
    group_name      VARCHAR,  -- process group; NULL: the trace does not say (Gloo)
    group_desc      VARCHAR,  -- its description
    group_size      INTEGER,  -- its number of ranks
    start_ns        BIGINT,   -- begin on the stream or thread, ns since the epoch on the clock of the rank
    end_ns          BIGINT,   -- end
    exposed_ns      BIGINT,   -- how much of it nothing hides
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE trace_kernels (
    rank            INTEGER,  -- global rank
    class           VARCHAR,  -- what it does: a class of knowledge/kernels.yaml
    name            VARCHAR,  -- kernel, bounded
    count           BIGINT,   -- how often it ran
    took_ns         BIGINT,   -- all its runs together; they may overlap
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE stack_samples (
    rank            INTEGER,  -- global rank
    activity        VARCHAR,  -- what the main thread does there, in the words of stack_threads
    operation       VARCHAR,  -- collective, if it is in one
    file            VARCHAR,  -- innermost frame of the user's program: file; NULL: none is on the stack
    line            INTEGER,  -- line
    function        VARCHAR,  -- function
    samples         BIGINT,   -- so often
    stack           VARCHAR,  -- all its frames, outermost first, with semicolons between
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

CREATE TABLE memory_devices (
    rank            INTEGER,  -- global rank, as the file's name says
    device          INTEGER,  -- number of the GPU as the process counts
    reserved_bytes  BIGINT,   -- what torch's allocator has taken from CUDA
    allocated_bytes BIGINT,   -- what of it tensors hold
    largest_free_bytes BIGINT, -- the largest piece that is reserved and unused
    segments        BIGINT,   -- pieces that were taken from CUDA
    expandable      BOOLEAN,  -- segments can grow (expandable_segments:True)
    peak_bytes      BIGINT,   -- most that was allocated at once while history was recorded; NULL without history
    tried_bytes     BIGINT,   -- what was asked for when memory ran out; NULL: it did not while history was recorded
    tried_for       VARCHAR,  -- whose it was to be: a holder of knowledge/memory_holders.yaml, other, unknown (backward)
    file            VARCHAR,  -- innermost frame of the user's program of what was asked for: file
    line            INTEGER,  -- line
    function        VARCHAR,  -- function
    device_free_bytes BIGINT, -- what CUDA had left then
    events          BIGINT,   -- allocations and releases in the history
    updates         BIGINT,   -- steps of the optimizer in it that allocate something
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE memory_holders (
    rank            INTEGER,  -- global rank
    device          INTEGER,  -- number of the GPU as the process counts
    moment          VARCHAR,  -- end: when the snapshot was taken | peak: when most was allocated | kept: what each step leaves
    holder          VARCHAR,  -- whose it is by its frames: a holder of knowledge/memory_holders.yaml, other, unknown
    bytes           BIGINT,   -- so much, together
    blocks          BIGINT,   -- in so many pieces
    file            VARCHAR,  -- innermost frame of the user's program: file
    line            INTEGER,  -- line
    function        VARCHAR,  -- function
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE memory_series (
    rank            INTEGER,  -- global rank
    host            VARCHAR,  -- host name
    step            BIGINT,   -- step of training; NULL if it was not told
    time_s          DOUBLE,   -- when, seconds since the epoch
    rss_bytes       BIGINT,   -- resident memory of the process on the host
    allocated_bytes BIGINT,   -- what tensors hold on all its GPUs; NULL without CUDA
    peak_bytes      BIGINT,   -- most that they held so far
    reserved_bytes  BIGINT,   -- what the allocator has taken from CUDA
    optimizer_bytes BIGINT,   -- state of the optimizer that this rank holds; NULL if it was not told
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE memory_parameters (
    rank            INTEGER,  -- global rank
    module          VARCHAR,  -- module that owns it
    name            VARCHAR,  -- parameter
    bytes           BIGINT,   -- size of the whole parameter
    local_bytes     BIGINT,   -- what this rank holds of it
    sharded         BOOLEAN,  -- it lies in parts on several ranks
    source          VARCHAR   -- raw file of the bundle
);

CREATE TABLE memory_plans (
    plan            VARCHAR   -- JSON object: a parallel plan that somebody asked about, as ddx_tools.probes.memory.estimate.MemoryPlan
);

CREATE TABLE fingerprints (
    run             INTEGER,  -- 0; 1 of the run that it is held against
    rank            INTEGER,  -- global rank
    world_size      INTEGER,  -- ranks of the run
    host            VARCHAR,  -- host name
    began_s         DOUBLE,   -- wall clock when the rank began its file, seconds since the epoch: tells attempts apart
    step            INTEGER,  -- step of training, as the program or the optimizer counts it
    position        INTEGER,  -- place among the lines of the step: the order in which values came up
    what            VARCHAR,  -- parameter | gradient | own_gradient (before any reduction) | buffer | optimizer | batch | value | rng | wrapper | calls | tied | took
    name            VARCHAR,  -- of the tensor, without the prefixes of wrappers
    hash            VARCHAR,  -- of its bits; of a DTensor of the local part, as all numbers
    norm            DOUBLE,   -- root of the sum of squares of its finite values
    projection      DOUBLE,   -- sum of its values, each with a fixed weight: linear in the tensor
    low             DOUBLE,   -- least value
    high            DOUBLE,   -- greatest value
    non_finite      BIGINT,   -- how many values are NaN or infinite
    facts           VARCHAR,  -- JSON object: shape, dtype, sum, of a DTensor placements, mesh, coordinate and local shape
    text            VARCHAR,  -- beginning of the line, as it stands in the file
    source          VARCHAR,  -- raw file of the bundle
    source_line     INTEGER   -- line in that file, 1-based
);

-- Who takes part in which operation of which group, by every source: one row for each thing that a source tells.
CREATE VIEW participation AS
    SELECT 'stack' AS told_by, host, rank, group_hint AS group_key, NULL::BIGINT AS seq, operation,
        user_file AS file, user_line AS line, false AS done, source, NULL::INTEGER AS source_line
    FROM stack_threads WHERE is_main AND role = 'rank' AND operation IS NOT NULL
    UNION ALL
    SELECT 'record', host, rank, group_key, seq, op, user_file, user_line, done, source, NULL FROM collectives
    -- a watchdog mentions what did not end; its counters name no operation: all up to `seq` were completed
    UNION ALL
    SELECT 'log', host, rank, group_key, coalesce(seq, last_completed), op, NULL, NULL, op IS NULL, source, source_line
    FROM watchdog_reports
    -- NCCL logs what is enqueued, never what ended
    UNION ALL
    SELECT 'nccl', host, rank, communicator, op_count, name, NULL, NULL, NULL, source, source_line FROM nccl_ops;

-- In what state each rank's process was seen, by every source: alive, stopped, waiting for what, ended how.
CREATE VIEW process_state AS
    SELECT 'process' AS told_by, host, rank, pid, role, state, NULL AS activity, NULL AS waits_for, NULL::BOOLEAN AS moved,
        NULL::INTEGER AS exit_code, NULL AS ended, NULL::DOUBLE AS time_s, source, NULL::INTEGER AS source_line
    FROM ranks WHERE rank IS NOT NULL
    UNION ALL
    SELECT 'stack', host, rank, pid, role, state, activity, coalesce(blocked_on, wchan), moved, NULL, NULL, taken_s, source,
        NULL
    FROM stack_threads WHERE is_main AND rank IS NOT NULL AND role <> 'dead'
    UNION ALL
    SELECT 'log', host, rank, pid, NULL, NULL, NULL, NULL, NULL, exit_code, coalesce(code, kind), time_s, source, source_line
    FROM log_events WHERE rank IS NOT NULL
        AND kind IN ('exit', 'traceback', 'failure_summary', 'fatal_stack', 'error_file');
