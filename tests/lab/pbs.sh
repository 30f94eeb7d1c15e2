#!/bin/bash
# A PBS on the hosts of the lab: `pbs.sh head NODE...` on the first of them, `pbs.sh mom` on
# the others.
#
# What pbs_habitat does takes 14 s, most of it waiting for its own data service; this is the
# same in half. It needs an installed OpenPBS with its setuid programs, and PostgreSQL. The
# settings are in $PBS_CONF_FILE, as /etc is the machine's.
set -eu
role=$1
shift
# shellcheck source=/dev/null
. "$PBS_CONF_FILE"
export PBS_HOME PBS_EXEC PBS_SERVER PBS_DATA_SERVICE_PORT=15007
export LD_LIBRARY_PATH=$PBS_EXEC/lib

make_home() { # KIND: as the installation does
    local version
    version=$("$PBS_EXEC/bin/qstat" --version | sed 's/.*= //')
    rm -rf "$PBS_HOME"
    if [ "$1" = server ]; then
        "$PBS_EXEC/libexec/pbs_postinstall" server "$version" "$PBS_EXEC" "$PBS_HOME" '' sameconf
    else
        "$PBS_EXEC/libexec/pbs_postinstall" "$1" "$version" "$PBS_EXEC" "$PBS_HOME" sameconf
    fi
    echo "PBS_CONF_FILE=$PBS_CONF_FILE" >>"$PBS_HOME/pbs_environment"
    # the hosts share their files
    echo "\$usecp *:/ /" >"$PBS_HOME/mom_priv/config"
}

data_service() {
    local bin data=$PBS_HOME/datastore
    bin=$(pg_config --bindir)
    install -d -o postgres -g postgres -m 2775 /run/postgresql
    install -d -o postgres -m 700 "$data"
    cd "$data"
    PATH=$bin:$PATH
    as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
    as_postgres initdb -D "$data" -U postgres -E SQL_ASCII --locale=C --no-sync --auth=trust
    {
        echo "port = $PBS_DATA_SERVICE_PORT"
        echo "listen_addresses = '*'"
        echo "fsync = off"
    } >>"$data/postgresql.conf"
    echo "host all all 0.0.0.0/0 trust" >>"$data/pg_hba.conf"
    as_postgres pg_ctl -D "$data" -w -l "$data/log" start
    as_postgres createdb -p $PBS_DATA_SERVICE_PORT pbs_datastore
    as_postgres psql -q -p $PBS_DATA_SERVICE_PORT -d pbs_datastore \
        -f "$PBS_EXEC/libexec/pbs_db_schema.sql"
    "$PBS_EXEC/sbin/pbs_ds_password" -r
}

case $role in
mom)
    make_home execution
    "$PBS_EXEC/sbin/pbs_mom"
    ;;
head)
    make_home server
    data_service
    "$PBS_EXEC/sbin/pbs_comm"
    "$PBS_EXEC/sbin/pbs_server" -t create
    sed -i 's/^\(resources: "ncpus, \)/\1ngpus, /' "$PBS_HOME/sched_priv/sched_config"
    "$PBS_EXEC/sbin/pbs_sched"
    "$PBS_EXEC/sbin/pbs_mom"
    {
        echo "create resource ngpus type=long, flag=nh"
        echo "create queue workq queue_type=Execution,enabled=True,started=True"
        echo "set server default_queue=workq, flatuid=True, job_history_enable=True"
        echo "create queue rt_HF queue_type=Execution,enabled=True,started=True"
        for node; do # as large as the tests want it
            echo "create node $node resources_available.ncpus=8"
            echo "set node $node resources_available.ngpus=4"
        done
        echo "set server scheduling=True"
    } | "$PBS_EXEC/bin/qmgr"
    ;;
esac
