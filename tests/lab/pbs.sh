#!/bin/bash
# A PBS on the hosts of the lab: pbs.sh head NODE... on the first of them, pbs.sh mom on each.
#
# What pbs_habitat does takes 14 s, most of it waiting for its own data service; this is the
# same in 8. It needs an installed OpenPBS ($PBS_EXEC, else /opt/pbs) with its setuid
# programs, and PostgreSQL. The settings are in $PBS_CONF_FILE, as /etc is the machine's.
set -eu
: "${PBS_EXEC:=/opt/pbs}"
role=$1
shift
. "$PBS_CONF_FILE"
export PBS_CONF_FILE PBS_HOME PBS_EXEC PBS_SERVER PBS_DATA_SERVICE_PORT=15007

make_home() { # as the installation does
    rm -rf "$PBS_HOME"
    "$PBS_EXEC/libexec/pbs_postinstall" "$1" "$("$PBS_EXEC/bin/qstat" --version | sed 's/.*= //')" \
        "$PBS_EXEC" "$PBS_HOME" ${2+"$2"} sameconf
    # no /etc/profile.d/pbs.sh here, which is where PATH gets PBS's programs
    printf 'PATH=/bin:/usr/bin:%s/bin\nPBS_CONF_FILE=%s\n' "$PBS_EXEC" "$PBS_CONF_FILE" \
        >"$PBS_HOME/pbs_environment"
    # the hosts share their files
    printf '$usecp *:/ /\n' >"$PBS_HOME/mom_priv/config"
}

data_service() {
    local bin data=$PBS_HOME/datastore
    bin=$(pg_config --bindir)
    install -d -o postgres -g postgres -m 2775 /run/postgresql
    install -d -o postgres -m 700 "$data"
    cd "$data"
    as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$bin/$@"; }
    as_postgres initdb -D "$data" -U postgres -E SQL_ASCII --locale=C --no-sync --auth=trust
    printf 'port = %s\nfsync = off\n' $PBS_DATA_SERVICE_PORT >>"$data/postgresql.conf"
    printf "listen_addresses = '*'\n" >>"$data/postgresql.conf"
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
    make_home server ""
    data_service
    "$PBS_EXEC/sbin/pbs_comm"
    "$PBS_EXEC/sbin/pbs_server" -t create
    "$PBS_EXEC/sbin/pbs_sched"
    "$PBS_EXEC/sbin/pbs_mom"
    {
        echo "create queue workq queue_type=Execution,enabled=True,started=True"
        echo "set server default_queue=workq, flatuid=True, job_history_enable=True"
        echo "set server acl_roots=root"
        for node; do
            # as large as the tests want it
            echo "create node $node resources_available.ncpus=8"
        done
        echo "set server scheduling=True"
    } | "$PBS_EXEC/bin/qmgr"
    ;;
esac
