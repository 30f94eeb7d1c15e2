/* ddprun called as another launcher: every option of their manuals, and the command lines
 * of their documentation. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/launcher/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options as --help of these versions lists them, each with the number of its values. */
static const struct {
    const char *program, *options;
} manuals[] = {
    {"torchrun", /* PyTorch 2.15 */
     "--nnodes=1 --nproc-per-node=1 --rdzv-backend=1 --rdzv-endpoint=1 --rdzv-id=1 "
     "--rdzv-conf=1 --standalone=0 --max-restarts=1 --monitor-interval=1 "
     "--start-method=1 --event-log-handler=1 --role=1 -m=0 --module=0 --no-python=0 "
     "--run-path=0 --log-dir=1 -r=1 --redirects=1 -t=1 --tee=1 "
     "--log-line-prefix-template=1 --local-ranks-filter=1 --duplicate-stdout-filters=1 "
     "--duplicate-stderr-filters=1 --node-rank=1 --master-addr=1 --master-port=1 "
     "--local-addr=1 --logs-specs=1 --numa-binding=1 --signals-to-handle=1 "
     "--shutdown-timeout=1 --virtual-local-rank=0 --print-completion=1"},
    {"mpirun", /* Open MPI 4.1.4 */
     "-allow-run-as-root=0 -am=1 --app=1 --bind-to=1 -bind-to-core=0 -bind-to-socket=0 "
     "-bycore=0 -bynode=0 -byslot=0 -c=1 -np=1 -cf=1 --cartofile=1 -continuous=0 "
     "-cpu-list=1 -cpu-set=1 -cpus-per-proc=1 -cpus-per-rank=1 -d=0 -debug-devel=0 "
     "-debug=0 -debug-daemons=0 -debug-daemons-file=0 -debugger=1 -default-hostfile=1 "
     "-disable-recovery=0 -display-allocation=0 -display-devel-allocation=0 "
     "-display-devel-map=0 -display-diffable-map=0 -display-map=0 -display-topo=0 "
     "-do-not-launch=0 -do-not-resolve=0 -dvm=0 -enable-instant-on-support=0 "
     "-enable-recovery=0 -fwd-mpirun-port=0 -get-stack-traces=0 -gmca=2 -H=1 -host=1 "
     "-hnp=1 -hostfile=1 -index-argv-by-rank=0 -launch-agent=1 "
     "-leave-session-attached=0 -machinefile=1 --map-by=1 -max-restarts=1 -max-vm-size=1 "
     "-mca=2 -merge-stderr-to-stdout=0 -N=1 -n=1 -nolocal=0 -nooversubscribe=0 "
     "--noprefix=0 -novm=0 -npernode=1 -npersocket=1 -ompi-server=1 -output-filename=1 "
     "-output-proctable=0 -oversubscribe=0 -path=1 -pernode=0 -personality=1 --ppr=1 "
     "--prefix=1 --preload-files=1 -q=0 --quiet=0 --rank-by=1 -report-bindings=0 "
     "-report-child-jobs-separately=0 -report-events=1 -report-pid=1 "
     "-report-state-on-timeout=0 -report-uri=1 -rf=1 --rankfile=1 -s=0 "
     "--preload-binary=0 -set-cwd-to-session-dir=0 -show-progress=0 -stdin=1 "
     "-tag-output=0 -timeout=1 -timestamp-output=0 -tune=1 -tv=0 -use-hwthread-cpus=0 "
     "-use-regexp=0 -v=0 --verbose=0 -wd=1 -wdir=1 -x=1 -xml=0 -xml-file=1 -xterm=1"},
    {"mpiexec.hydra", /* MPICH 4.0.2 */
     "-genv=2 -genvlist=1 -genvnone=0 -genvall=0 -f=1 -hosts=1 -wdir=1 -configfile=1 "
     "-env=2 -envlist=1 -envnone=0 -envall=0 -n=1 -np=1 -launcher=1 -launcher-exec=1 "
     "-enable-x=0 -disable-x=0 -rmk=1 -topolib=1 -bind-to=1 -map-by=1 -membind=1 "
     "-demux=1 -verbose=0 -info=0 -print-all-exitcodes=0 -iface=1 -ppn=1 -profile=0 "
     "-prepend-rank=0 -prepend-pattern=1 -outfile-pattern=1 -errfile-pattern=1 "
     "-nameserver=1 -disable-auto-cleanup=0 -disable-hostname-propagation=0 "
     "-order-nodes=1 -localhost=1 -usize=1 -pmi-port=0 -skip-launch-node=0 "
     "-gpus-per-proc=1"},
    {"mpiexec", /* MPICH 5.0, options that 4.0 has not */
     "-machines=1 -machinelist=1 -rankmap=1 -outfile=1 -errfile=1 -memory-alloc-kinds=1 "
     "-enable-auto-cleanup=0 -enable-hostname-propagation=0 -g=1 -gpu-subdevs-per-proc=1 "
     "-ckpointlib=1 -ckpoint-prefix=1 -ckpoint-interval=1 -ckpoint-num=1 -prepend-rank=0 "
     "-l=0 -usize=1 -pmi-port=0 -demux=1 -iface=1 -rmk=1 -launcher=1 -f=1 -n=1 -np=1 "
     "-ppn=1"},
    {"mpiexec", /* Intel MPI 2021 */
     "-hosts-group=1 -pmi-connect=1 -trace-imbalance=0 -branch-count=1 -pmi-aggregate=0 "
     "-pmi-noaggregate=0 -gdba=1 -nolocal=0 -ilp64=0 -noconf=0 -ordered-output=0 -path=1 "
     "-tmpdir=1 -use-app-topology=1 -bootstrap=1 -bootstrap-exec=1 "
     "-bootstrap-exec-args=1 -usize=1 -cleanup=0 -aps=0 -mps=0 -gtool=1 -gtoolfile=1 "
     "-umask=1 -print-rank-map=0 -host=1 -machine=1 -perhost=1 -grr=1 -rr=0 -genvexcl=1 "
     "-envexcl=1 -check-mpi=0 -trace=0"},
    {"horovodrun", /* Horovod 0.28.1 */
     "-np=1 --num-proc=1 -cb=0 --check-build=0 --disable-cache=0 --start-timeout=1 "
     "--network-interfaces=1 --network-interface=1 --output-filename=1 --verbose=0 "
     "--config-file=1 -p=1 --ssh-port=1 -i=1 --ssh-identity-file=1 "
     "--fusion-threshold-mb=1 --cycle-time-ms=1 --cache-capacity=1 "
     "--hierarchical-allreduce=0 --no-hierarchical-allreduce=0 "
     "--hierarchical-allgather=0 --no-hierarchical-allgather=0 --torus-allreduce=0 "
     "--no-torus-allreduce=0 --autotune=0 --autotune-log-file=1 "
     "--autotune-warmup-samples=1 --autotune-steps-per-sample=1 "
     "--autotune-bayes-opt-max-samples=1 --autotune-gaussian-process-noise=1 --min-np=1 "
     "--min-num-proc=1 --max-np=1 --max-num-proc=1 --slots-per-host=1 "
     "--elastic-timeout=1 --reset-limit=1 --blacklist-cooldown-range=2 "
     "--timeline-filename=1 --timeline-mark-cycles=0 --no-stall-check=0 "
     "--stall-check-warning-time-seconds=1 --stall-check-shutdown-time-seconds=1 "
     "--mpi-threads-disable=0 --mpi-args=1 --tcp=0 --binding-args=1 "
     "--num-nccl-streams=1 --thread-affinity=1 --gloo-timeout-seconds=1 --log-level=1 "
     "--log-without-timestamp=0 -prefix-timestamp=0 --prefix-output-with-timestamp=0 "
     "-H=1 --hosts=1 -hostfile=1 --hostfile=1 --host-discovery-script=1 --gloo=0 --mpi=0 "
     "--jsrun=0"},
    {"accelerate launch", /* accelerate 1.15 */
     "--config_file=1 --quiet=0 -q=0 --cpu=0 --multi_gpu=0 --tpu=0 --mixed_precision=1 "
     "--num_processes=1 --num_machines=1 --num_cpu_threads_per_process=1 "
     "--enable_cpu_affinity=0 --dynamo_backend=1 --dynamo_mode=1 "
     "--dynamo_use_fullgraph=0 --dynamo_use_dynamic=0 "
     "--dynamo_use_regional_compilation=0 --use_deepspeed=0 --use_fsdp=0 "
     "--use_parallelism_config=0 --use_megatron_lm=0 --gpu_ids=1 --same_network=0 "
     "--machine_rank=1 --main_process_ip=1 --main_process_port=1 -t=1 --tee=1 "
     "--log_dir=1 --role=1 --rdzv_backend=1 --rdzv_conf=1 --max_restarts=1 "
     "--monitor_interval=1 -m=0 --module=0 --no_python=0 --tpu_cluster=0 "
     "--no_tpu_cluster=0 --tpu_use_sudo=0 --vm=1 --env=1 --main_training_function=1 "
     "--downcast_bf16=0 --deepspeed_config_file=1 --zero_stage=1 "
     "--offload_optimizer_device=1 --offload_param_device=1 "
     "--offload_optimizer_nvme_path=1 --offload_param_nvme_path=1 "
     "--gradient_accumulation_steps=1 --gradient_clipping=1 --zero3_init_flag=1 "
     "--zero3_save_16bit_model=1 --deepspeed_hostfile=1 --deepspeed_exclusion_filter=1 "
     "--deepspeed_inclusion_filter=1 --deepspeed_multinode_launcher=1 "
     "--deepspeed_moe_layer_cls_names=1 --fsdp_version=1 --fsdp_offload_params=1 "
     "--fsdp_transformer_layer_cls_to_wrap=1 --fsdp_activation_checkpointing_offload=1 "
     "--megatron_lm_tp_degree=1 --fp8_backend=1 --fp8_use_autocast_during_eval=0 "
     "--fp8_override_linear_precision=1 --aws_access_key_id=1 "
     "--aws_secret_access_key=1 --debug=0 --mpirun_hostfile=1 "
     "--parallelism_config_tp_size=1"},
    {"deepspeed", /* DeepSpeed 0.19 */
     "-H=1 --hostfile=1 -i=1 --include=1 -e=1 --exclude=1 --num_nodes=1 "
     "--min_elastic_nodes=1 --max_elastic_nodes=1 --num_gpus=1 --num_accelerators=1 "
     "--master_port=1 --master_addr=1 --node_rank=1 --launcher=1 --launcher_args=1 "
     "--module=0 --no_python=0 --no_local_rank=0 --no_ssh_check=0 --force_multi=0 "
     "--save_pid=0 --enable_each_rank_log=1 --autotuning=1 --elastic_training=0 "
     "--bind_cores_to_rank=0 --bind_core_list=1 --ssh_port=1 --no_ssh=0 "
     "--venv_script=1 --log_level=1 -q=0 --quiet=0"},
    {"srun", /* Slurm 22.05 */
     "-A=1 --account=1 --acctg-freq=1 --bb=1 --bbf=1 -b=1 --begin=1 --bcast=0 -B=1 "
     "--extra-node-info=1 -c=1 --cpus-per-task=1 -C=1 --constraint=1 --comment=1 "
     "--contiguous=0 -S=1 --core-spec=1 --cores-per-socket=1 --cpu-bind=1 --cpu-freq=1 "
     "--cpus-per-gpu=1 --deadline=1 -d=1 --dependency=1 -X=0 --disable-status=0 -D=1 "
     "--chdir=1 -e=1 --error=1 --epilog=1 -E=0 --preserve-env=0 --exact=0 --exclusive=0 "
     "--export=1 --export-file=1 -F=1 --nodefile=1 --gid=1 -G=1 --gpus=1 --gpu-bind=1 "
     "--gpu-freq=1 --gpus-per-node=1 --gpus-per-socket=1 --gpus-per-task=1 --gres=1 "
     "--gres-flags=1 -H=0 --hold=0 --het-group=1 --hint=1 -I=0 --immediate=0 -i=1 "
     "--input=1 -J=1 --job-name=1 --jobid=1 -K=0 --kill-on-bad-exit=0 -l=0 --label=0 "
     "-L=1 --licenses=1 -M=1 --clusters=1 -m=1 --distribution=1 --mail-type=1 "
     "--mail-user=1 --mem=1 --mem-bind=1 --mem-per-cpu=1 --mem-per-gpu=1 --mincpus=1 "
     "--mpi=1 --msg-timeout=1 --multi-prog=0 --network=1 -Z=0 --no-allocate=0 -k=0 "
     "--no-kill=0 -w=1 --nodelist=1 -N=1 --nodes=1 -n=1 --ntasks=1 --ntasks-per-core=1 "
     "--ntasks-per-node=1 --ntasks-per-socket=1 --open-mode=1 -o=1 --output=1 -O=0 "
     "--overcommit=0 -s=0 --oversubscribe=0 --overlap=0 -p=1 --partition=1 --power=1 "
     "--prefer=1 --priority=1 --profile=1 --prolog=1 --propagate=0 --pty=0 -q=1 --qos=1 "
     "-Q=0 --quiet=0 --quit-on-interrupt=0 -r=1 --relative=1 --reboot=0 --resv-ports=0 "
     "--reservation=1 --send-libs=0 --signal=1 --slurmd-debug=1 --sockets-per-node=1 "
     "--spread-job=0 --switches=1 --task-epilog=1 --task-prolog=1 --test-only=0 "
     "--thread-spec=1 -T=1 --threads=1 --threads-per-core=1 -t=1 --time=1 --time-min=1 "
     "--tmp=1 --tres-per-task=1 -u=0 --unbuffered=0 --uid=1 --use-min-nodes=0 -v=0 "
     "--verbose=0 -W=1 --wait=1 --wckey=1 --wait-all-nodes=0 --x11=0 -x=1 --exclude=1"},
};

/* Each is either taken with so many values, or its value is found wrong, or it is refused
 * with a hint: never unknown, and never eats the program. */
LOOP_TEST(every_option_of_the_manual_is_known, ARRAY_LEN(manuals))
{
    char *options = xstrdup(manuals[_i].options), *save;
    int known = 0;
    for (char *w = strtok_r(options, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        struct opts o;
        struct ddp_err err;
        char line[160], *equals = strchr(w, '=');
        static const char *const values[] = {"", " 1", " 1 1"};
        *equals = '\0';
        snprintf(line, sizeof line, "%s %s%s prog", manuals[_i].program, w,
                 values[equals[1] - '0']);
        int rc = parse_words(line, &o, &err);
        ck_assert_msg(!strstr(err.text, "unknown option"), "%s: %s", line, err.text);
        ck_assert_msg(!strstr(err.text, "no program"), "%s: %s", line, err.text);
        ck_assert_msg(rc < 0 || strcmp(o.argv[0], "prog") == 0, "%s", line);
        opts_finish(&o);
        known++;
    }
    ck_assert_int_gt(known, 25);
    free(options);
}

/* From the documentation of PyTorch, Open MPI, MPICH, Horovod, accelerate and DeepSpeed.
 */
static const struct {
    const char *line;
    int np, per_node, nnodes;
    const char *hosts, *hostfile, *exported, *ignored;
} examples[] = {
    {"torchrun train.py", 0, 1, 0, NULL, NULL, "", ""},
    {"torchrun --standalone --nnodes=1 --nproc-per-node=4 train.py --arg1 x", 0, 4, 1,
     NULL, NULL, "", "--standalone"},
    {"torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 "
     "--nproc-per-node=4 train.py",
     0, 4, 1, NULL, NULL, "", "--rdzv-backend"},
    {"torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 --rdzv-id=77 "
     "--rdzv-backend=c10d --rdzv-endpoint=node1.example.com:29400 train.py",
     0, 8, 2, NULL, NULL, "", "--rdzv-id --rdzv-backend"},
    {"torchrun --nproc_per_node gpu -m pkg.train", 0, 0, 0, NULL, NULL, "", ""},
    {"torchrun --nproc_per_node=2 --use_env train.py", 0, 2, 0, NULL, NULL, "",
     "--use_env"},
    {"torchrun --nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=localhost:0 "
     "--local-ranks-filter 0 --role rank --tee 3 -m torchtitan.train",
     0, 8, 0, NULL, NULL, "", "--rdzv_backend --role --tee"},
    {"torchrun --nproc_per_node 2 --log-dir logs -r 3 train.py", 0, 2, 0, NULL, NULL, "",
     "-r"},
    {"mpirun -np 4 -H localhost:4 python train.py", 4, 0, 0, "localhost:4", NULL, "", ""},
    {"mpirun -np 4 --map-by :OVERSUBSCRIBE prog", 4, 0, 0, NULL, NULL, "", ""},
    {"mpirun -np 4 --map-by core:PE=2,OVERSUBSCRIBE --hetero-nodes prog", 4, 0, 0, NULL,
     NULL, "", "--map-by:PE=2 --hetero-nodes"},
    {"mpiexec -n 2 -launcher slurm prog", 2, 0, 0, NULL, NULL, "", ""},
    {"mpirun -np 16 -H server1:4,server2:4,server3:4,server4:4 -bind-to none -map-by slot "
     "-x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python "
     "train.py",
     16, 0, 0, "server1:4,server2:4,server3:4,server4:4", NULL,
     "NCCL_DEBUG=INFO LD_LIBRARY_PATH PATH OMPI_MCA_pml=ob1 'OMPI_MCA_btl=^openib'", ""},
    {"mpirun --allow-run-as-root --tag-output -np 4 --map-by ppr:2:node:PE=2 --bind-to "
     "core:overload-allowed prog",
     4, 0, 0, NULL, NULL, "",
     "--allow-run-as-root --map-by:PE=2 --bind-to:overload-allowed"},
    {"mpirun --hostfile hosts -n 8 --npernode 4 --bind-to socket -x A=b prog", 8, 4, 0,
     NULL, "hosts", "A=b", ""},
    {"mpirun -n 8 -hostfile /job/hostfile --mca btl ^openib --mca btl_tcp_if_include eth0 "
     "-x PYTHONPATH=/a python -u train.py",
     8, 0, 0, NULL, "/job/hostfile",
     "'OMPI_MCA_btl=^openib' OMPI_MCA_btl_tcp_if_include=eth0 PYTHONPATH=/a", ""},
    {"mpirun -f hosts -n 8 -ppn 4 prog", 8, 4, 0, NULL, "hosts", "", ""},
    {"mpiexec -f machinefile -n 32 -genv OMP_NUM_THREADS 4 -bind-to core ./prog", 32, 0,
     0, NULL, "machinefile", "OMP_NUM_THREADS=4", ""},
    {"mpiexec.hydra -hosts a,b -ppn 2 -iface ib0 -l -print-all-exitcodes ./prog", 0, 2, 0,
     "a,b", NULL, "", "-print-all-exitcodes"},
    {"horovodrun -np 4 -H localhost:4 python train.py", 4, 0, 0, "localhost:4", NULL, "",
     ""},
    {"horovodrun -np 16 -H server1:4,server2:4 --gloo --verbose python train.py", 16, 0,
     0, "server1:4,server2:4", NULL, "", "--gloo"},
    {"horovodrun --mpi -np 2 --log-level DEBUG --cycle-time-ms 3.5 python train.py", 2, 0,
     0, NULL, NULL,
     "HOROVOD_CONTROLLER=mpi HOROVOD_CPU_OPERATIONS=mpi HOROVOD_LOG_LEVEL=DEBUG "
     "HOROVOD_CYCLE_TIME=3.5",
     ""},
    {"horovodrun -np 2 --autotune --timeline-mark-cycles --num-nccl-streams 4 "
     "--no-torus-allreduce python train.py",
     2, 0, 0, NULL, NULL,
     "HOROVOD_AUTOTUNE=1 HOROVOD_TIMELINE_MARK_CYCLES=1 HOROVOD_NUM_NCCL_STREAMS=4 "
     "HOROVOD_TORUS_ALLREDUCE=0",
     ""},
    {"horovodrun -np 4 --min-np 3 --max-np 9 --slots-per-host 2 --host-discovery-script "
     "hosts.sh --blacklist-cooldown-range 1 2 python train.py",
     0, 2, 256, NULL, NULL, "", "--blacklist-cooldown-range"},
    {"horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script hosts.sh python x.py",
     0, 0, 256, NULL, NULL, "", ""},
    {"horovodrun -np 8 --host-discovery-script hosts.sh python x.py", 0, 0, 256, NULL,
     NULL, "", ""},
    {"accelerate launch train.py", 0, 0, 0, NULL, NULL, "", ""},
    {"accelerate launch --multi_gpu --num_processes=2 --mixed_precision fp16 --use_fsdp "
     "--fsdp_sharding_strategy FULL_SHARD --fsdp_transformer_layer_cls_to_wrap Block "
     "train.py --lr 1",
     2, 0, 0, NULL, NULL,
     "ACCELERATE_MIXED_PRECISION=fp16 ACCELERATE_USE_FSDP=true "
     "FSDP_SHARDING_STRATEGY=FULL_SHARD FSDP_TRANSFORMER_CLS_TO_WRAP=Block",
     "--multi_gpu"},
    {"accelerate launch --num_processes 16 --num_machines 2 --machine_rank 0 "
     "--main_process_ip n1 --main_process_port 29500 --use_deepspeed --zero_stage 3 train.py",
     16, 0, 2, NULL, NULL,
     "ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3", ""},
    {"ddprun --as accelerate launch --cpu --num_processes 2 -m pkg.train", 2, 0, 0, NULL,
     NULL, "ACCELERATE_USE_CPU=true", ""},
    {"deepspeed --hostfile=myhostfile train.py --deepspeed ds_config.json", 0, 0, 0, NULL,
     "myhostfile", "DDPRUN_LOCAL_RANK_ARG=1", ""},
    {"deepspeed --num_gpus 2 --no_local_rank --master_port 29600 train.py", 0, 2, 0, NULL,
     NULL, "DDPRUN_LOCAL_RANK_ARG=1 DDPRUN_LOCAL_RANK_ARG=0", ""},
    {"deepspeed -H hosts --exclude n3@n4 --launcher openmpi train.py", 0, 0, 0, "^n3,^n4",
     "hosts", "DDPRUN_LOCAL_RANK_ARG=1", "--launcher"},
    {"torchrun --nnodes=1:3 --nproc_per_node=4 --max_restarts=3 --rdzv_id=1 "
     "--rdzv_backend=c10d --rdzv_endpoint=node1:29400 train.py",
     0, 4, 3, NULL, NULL, "", "--rdzv_id --rdzv_backend"},
    {"torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 --master_addr=123.45.123.45 "
     "--master_port=1234 train.py",
     0, 8, 2, NULL, NULL, "", ""},
    {"torchrun --nproc_per_node=4 --rdzv_endpoint=node1 -m open_clip_train.main --workers 4",
     0, 4, 0, NULL, NULL, "", ""},
    {"torchrun --master_port 17673 --nproc_per_node=8 make_datasets.py --data_root /mnt",
     0, 8, 0, NULL, NULL, "", ""},
    {"torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=101 --rdzv_endpoint=localhost:5972 "
     "example.py",
     0, 2, 1, NULL, NULL, "", "--rdzv_id"},
    {"torchrun --nproc-per-node=8 finetune.py -c flow.yaml --optim.learning_rate 1e-5", 0,
     8, 0, NULL, NULL, "", ""},
    {"mpirun --mca btl tcp,self,sm -np 4 ./my_app", 4, 0, 0, NULL, NULL,
     "OMPI_MCA_btl=tcp,self,sm", ""},
    {"mpirun -n 2 --mca pml ucx -x UCX_TLS=rc,sm,cuda_copy,gdr_copy,cuda_ipc ./osu_latency "
     "D D",
     2, 0, 0, NULL, NULL, "OMPI_MCA_pml=ucx UCX_TLS=rc,sm,cuda_copy,gdr_copy,cuda_ipc",
     ""},
    {"mpirun --hostfile my_hostfile.txt --map-by ppr:1:node --prtemca plm_base_verbose 100 "
     "--prtemca rmaps_base_verbose 100 --display alloc hostname",
     0, 0, 0, NULL, "my_hostfile.txt", "", "--prtemca --prtemca --display"},
    {"mpirun -H aa,bb --pernode ./a.out", 0, 1, 0, "aa,bb", NULL, "", ""},
    {"mpirun --hostfile myhostfile -n 14 --nooversubscribe ./a.out", 14, 0, 0, NULL,
     "myhostfile", "", "--nooversubscribe"},
    {"mpirun --np 4 --bind-to core --rank-by span --host hostA:4,hostB:2 ./a.out", 4, 0,
     0, "hostA:4,hostB:2", NULL, "", "--rank-by"},
    {"mpirun --np 4 --report-bindings --map-by slot:PE=2 --bind-to core ./a.out", 4, 0, 0,
     NULL, NULL, "", "--report-bindings --map-by:PE=2"},
    {"mpirun -n 4 --hostfile my_hostfile -x DISPLAY=arcade.example.com:0 xterm -e gdb app",
     4, 0, 0, NULL, "my_hostfile", "DISPLAY=arcade.example.com:0", ""},
    {"mpirun -np 16 --oversubscribe --allow-run-as-root balance_dask_output --indir out",
     16, 0, 0, NULL, NULL, "", "--allow-run-as-root"},
    {"mpirun -np 16 -H server1:4,server2:4 -bind-to none -map-by slot -mca plm_rsh_args "
     "-p12345 -x NCCL_SOCKET_IFNAME=^lo,docker0 -mca btl_tcp_if_exclude lo,docker0 prog",
     16, 0, 0, "server1:4,server2:4", NULL,
     "'NCCL_SOCKET_IFNAME=^lo,docker0' OMPI_MCA_btl_tcp_if_exclude=lo,docker0", ""},
    {"mpiexec --mca btl_tcp_if_include 192.168.1.0/24 -np 4 ./my_app", 4, 0, 0, NULL,
     NULL, "OMPI_MCA_btl_tcp_if_include=192.168.1.0/24", ""},
    {"mpiexec --memory-allocation-kinds system,mpi,cuda:device -n 64 ./app", 64, 0, 0,
     NULL, NULL, "", "--memory-allocation-kinds"},
    {"mpiexec -l -machinefile machfile -n 5 hostname", 5, 0, 0, NULL, "machfile", "", ""},
    {"mpiexec -n20 ./cpi", 20, 0, 0, NULL, NULL, "", ""},
    {"mpiexec -f hostfile -iface myri0 -n 4 ./app1", 4, 0, 0, NULL, "hostfile", "", ""},
    {"mpiexec -rmk pbs -n 4 -f hosts ./app", 4, 0, 0, NULL, "hosts", "", "-rmk"},
    {"mpiexec -launcher ssh -launcher-exec /usr/bin/ssh -f hosts -n 4 ./app", 4, 0, 0,
     NULL, "hosts", "", ""},
    {"mpiexec -n 8 -bind-to socket -map-by hwthread /bin/true", 8, 0, 0, NULL, NULL, "",
     ""},
    {"mpiexec -np 2 -ppn 2 --launcher ssh -f hosts -gpus-per-proc=1 ./pingping "
     "-type=MPI_INT -sendcnt=512",
     2, 2, 0, NULL, "hosts", "", ""},
    {"mpiexec -enable-x -demux select -f hosts -n 4 ./app", 4, 0, 0, NULL, "hosts", "",
     "-enable-x -demux"},
    {"mpirun -n 4 -genv OMP_NUM_THREADS=4 -genv I_MPI_PIN_DOMAIN=omp ./myprog", 4, 0, 0,
     NULL, NULL, "OMP_NUM_THREADS=4 I_MPI_PIN_DOMAIN=omp", ""},
    {"mpirun -n 4 -perhost 2 -hosts-group hostA[01-05],hostB ./myprog", 4, 2, 0,
     "hostA[01-05],hostB", NULL, "", ""},
    {"mpirun -np 32 -ppn 4 -hostfile hosts -env MV2_USE_CUDA=1 -env MV2_SUPPORT_DL=1 bash "
     "run_squad.sh",
     32, 4, 0, NULL, "hosts", "MV2_USE_CUDA=1 MV2_SUPPORT_DL=1", ""},
    {"horovodrun -np 4 --fusion-threshold-mb 32 python train.py", 4, 0, 0, NULL, NULL,
     "HOROVOD_FUSION_THRESHOLD=33554432", ""},
    {"horovodrun -np 4 --timeline-filename /t/timeline.json --timeline-mark-cycles python "
     "train.py",
     4, 0, 0, NULL, NULL,
     "HOROVOD_TIMELINE=/t/timeline.json HOROVOD_TIMELINE_MARK_CYCLES=1", ""},
    {"horovodrun -np 4 --autotune --cache-capacity 1024 --no-hierarchical-allgather python "
     "train.py",
     4, 0, 0, NULL, NULL,
     "HOROVOD_AUTOTUNE=1 HOROVOD_CACHE_CAPACITY=1024 HOROVOD_HIERARCHICAL_ALLGATHER=0",
     ""},
    {"horovodrun -np 6 -hostfile myhostfile python train.py", 6, 0, 0, NULL, "myhostfile",
     "", ""},
    {"horovodrun -np 4 --hosts cpu-node-1:2,cpu-node-2:2 python -m horovod.worker /tmp/c",
     4, 0, 0, "cpu-node-1:2,cpu-node-2:2", NULL, "", ""},
    {"accelerate launch --mixed_precision=fp16 --multi_gpu train_controlnet.py --lr 1e-5",
     0, 0, 0, NULL, NULL, "ACCELERATE_MIXED_PRECISION=fp16", "--multi_gpu"},
    {"accelerate launch --num_processes 8 --num_machines 2 --machine_rank 1 --rdzv_backend "
     "c10d --main_process_ip n1 --main_process_port 29500 complete_nlp_example.py",
     8, 0, 2, NULL, NULL, "", "--rdzv_backend"},
    {"accelerate launch --mixed_precision bf16 --dynamo_backend inductor "
     "--num_cpu_threads_per_process 2 train.py",
     0, 0, 0, NULL, NULL,
     "ACCELERATE_MIXED_PRECISION=bf16 ACCELERATE_DYNAMO_BACKEND=inductor OMP_NUM_THREADS=2",
     ""},
    {"deepspeed --num_nodes=2 train.py --deepspeed --deepspeed_config ds_config.json", 0,
     0, 2, NULL, NULL, "DDPRUN_LOCAL_RANK_ARG=1", ""},
    {"deepspeed --hostfile=myhostfile --no_ssh --node_rank=1 --master_addr=n1 "
     "--master_port=29500 train.py --deepspeed",
     0, 0, 0, NULL, "myhostfile", "DDPRUN_LOCAL_RANK_ARG=1", "--no_ssh"},
    {"deepspeed --num_accelerators 4 --bind_cores_to_rank inference.py", 0, 4, 0, NULL,
     NULL, "DDPRUN_LOCAL_RANK_ARG=1", ""},
    {"deepspeed --log_level error -q --num_gpus 2 train.py", 0, 2, 0, NULL, NULL,
     "DDPRUN_LOCAL_RANK_ARG=1", "--log_level -q"},
    {"srun -N2 -n8 -w n[1,3] -c4 --mpi=pmix_v4 --cpu-bind=cores -K -l prog", 8, 0, 2,
     "n[1,3]", NULL, "", "-c4 -K"},
    {"srun --nodes=2 --ntasks-per-node=4 -x n[1,3],n7 --gres=gpu:4 python train.py", 0, 4,
     2, "^n[1,3],^n7", NULL, "", "--gres"},
    {"ddprun --ntasks=4 --label --exact -u prog", 4, 0, 0, NULL, NULL, "", "--exact -u"},
    {"ddprun --min-np 3 --max-np 9 --ppn 2 prog", 0, 2, 4, NULL, NULL, "", ""},
    {"/opt/ddprun/compat/horovodrun -np 2 prog", 2, 0, 0, NULL, NULL, "", ""},
    {"ddprun --as torchrun --nproc-per-node 2 train.py", 0, 2, 0, NULL, NULL, "", ""},
    {"ddprun --as=mpirun -np 2 prog", 2, 0, 0, NULL, NULL, "", ""},
};

LOOP_TEST(command_lines_of_the_documentation_work, ARRAY_LEN(examples))
{
    struct opts o;
    struct ddp_err err;
    ck_ok(parse_words(examples[_i].line, &o, &err), err);
    ck_assert_int_eq(o.np, examples[_i].np);
    ck_assert_int_eq(o.per_node, examples[_i].per_node);
    ck_assert_int_eq(o.nnodes, examples[_i].nnodes);
    ck_assert_pstr_eq(o.hosts, examples[_i].hosts);
    ck_assert_pstr_eq(o.hostfile, examples[_i].hostfile);
    char *exported = shell_join(o.export_env.v), *ignored = shell_join(o.ignored.v);
    ck_assert_str_eq(exported ? exported : "", examples[_i].exported);
    ck_assert_str_eq(ignored ? ignored : "", examples[_i].ignored);
    free(exported);
    free(ignored);
    opts_finish(&o);
}

/* Options that mean something else there than here. */
TEST(their_meaning_comes_before_ours)
{
    struct opts o;
    struct ddp_err err;
    ck_ok(
        parse_words("mpirun --mca plm_rsh_args -p2222 --mca orte_default_hostfile f prog",
                    &o, &err),
        err);
    ck_assert_str_eq(o.ssh, "ssh -p2222");
    ck_assert_str_eq(o.hostfile, "f");
    ck_assert_uint_eq(o.export_env.n, 0);
    opts_finish(&o);
    ck_ok(
        parse_words("torchrun --numa-binding socket --shutdown-timeout 7 prog", &o, &err),
        err);
    ck_assert_int_eq(o.bind_to, BIND_SOCKET);
    ck_assert_int_eq(o.grace_ms, 7000);
    opts_finish(&o);
    ck_ok(parse_words("mpiexec -gpus-per-proc 1 -map-by socket -bind-to package prog", &o,
                      &err),
          err);
    ck_assert_int_eq(o.bind_to, BIND_ONE_GPU | BIND_SOCKET);
    ck_assert_int_eq(o.map_by, MAP_BLOCK);
    opts_finish(&o);
    ck_ok(parse_words("horovodrun -np 3 --slots 2 --host-discovery-script hosts.sh "
                      "--elastic-timeout 7 prog",
                      &o, &err),
          err);
    ck_assert_int_eq(o.elastic, ELASTIC_HOROVOD);
    ck_assert_int_eq(o.min_nnodes, 1);
    ck_assert_int_eq(o.nnodes, 256);
    ck_assert_int_eq(o.start_np, 3);
    ck_assert_int_eq(o.min_np, 3);
    ck_assert_int_eq(o.max_np, 3);
    ck_assert_int_eq(o.max_restarts, 1000);
    ck_assert_int_eq(o.node_wait_ms, 7000);
    ck_assert_str_eq(o.discovery, "hosts.sh");
    opts_finish(&o);
    ck_ok(parse_words("horovodrun -np 3 --reset-limit 5 --max-np 4 --slots 2 "
                      "--host-discovery-script hosts.sh prog",
                      &o, &err),
          err);
    ck_assert_int_eq(o.max_restarts, 5);
    ck_assert_int_eq(o.min_np, 3);
    ck_assert_int_eq(o.max_np, 4);
    opts_finish(&o);
    ck_ok(parse_words("horovodrun -np 3 prog", &o, &err), err);
    ck_assert_int_eq(o.elastic, ELASTIC_RESTART);
    opts_finish(&o);
}

static const struct {
    const char *line, *error;
} wrong[] = {
    {"srun -lO -n 2 prog", "unknown option '-lO' (try ddprun --help)"},
    {"torchrun --logs-specs 3 --local-addr a --run-path prog",
     "unknown here: '--logs-specs': use --output-filename; '--local-addr': use --interface "
     "NAME or --master-addr ADDRESS; '--run-path': leave it out (try ddprun --help)"},
    {"torchrun --logs-specs 3 --bogus x prog",
     "unknown here: '--logs-specs': use --output-filename; '--bogus': no such option (try "
     "ddprun --help)"},
    {"mpiexec -launcher fork prog",
     "unknown here: '-launcher': 'fork' has nothing like it here, see --help start (try "
     "ddprun --help)"},
    {"accelerate", "'accelerate' starts no program; only 'accelerate launch' does"},
    {"accelerate config",
     "'accelerate config' starts no program; only 'accelerate launch' does"},
    {"accelerate launch --config_file f --gpu_ids 0 train.py",
     "unknown here: '--config_file': give its values as options; '--gpu_ids': use -x "
     "CUDA_VISIBLE_DEVICES=LIST and --nproc-per-node N (try ddprun --help)"},
    {"deepspeed --include localhost:0,1 train.py",
     "--include 'localhost:0,1' names GPUs: use --include localhost -x "
     "CUDA_VISIBLE_DEVICES=0,1 --nproc-per-node 2 (try ddprun --help)"},
    {"deepspeed --include n1:0,1@n2:2,3 train.py",
     "--include 'n1:0,1@n2:2,3' names GPUs: name hosts only, and use -x "
     "CUDA_VISIBLE_DEVICES=LIST and --nproc-per-node N (try ddprun --help)"},
    {"torchrun --numa-binding x prog",
     "unknown here: '--numa-binding': 'x' has nothing like it here, see --help bind-to "
     "(try ddprun --help)"},
    {"mpirun --map-by slot:SPAN prog",
     "--map-by: ':SPAN' has nothing like it here, leave it out (try ddprun --help)"},
    {"horovodrun -np 4 --max-np 2 --host-discovery-script x prog",
     "--max-np 2 is less than --min-np 4"},
    {"ddprun --min-np 5 --max-np 5 --ppn 2 prog",
     "at least 5 and at most 4 ranks: with 2 on each host, no number of hosts fits"},
    {"ddprun --min-np 2 --nnodes 2 --ppn 2 prog",
     "--nnodes, and --min-np or --max-np: leave one out"},
    {"mpirun --with-ft ulfm prog",
     "unknown here: '--with-ft': a failed rank ends the job; "
     "--max-restarts N starts it again (try ddprun --help)"},
    {"mpirun --nosuch prog", "unknown option '--nosuch' (try ddprun --help)"},
    {"torchrun --mca a b prog", "unknown option '--mca' (try ddprun --help)"},
    {"mpiexec -ckpointlib blcr -ckpoint-prefix /tmp/a.ckpoint -f hosts -n 4 ./app",
     "unknown here: '-ckpointlib': the program has to save its checkpoints itself; "
     "'-ckpoint-prefix': the program has to save its checkpoints itself (try ddprun "
     "--help)"},
    {"mpirun -H aa,bb --map-by ppr:2:package ./a.out",
     "--map-by 'ppr:2:package': only ppr:N:node is known, N from 1 (try ddprun --help)"},
    {"mpirun -np 2 --tune foo.conf --use-hwthread-cpus a.out",
     "unknown here: '--tune': use -x OMPI_MCA_NAME=VALUE; '--use-hwthread-cpus': use "
     "--bind-to hwthread (try ddprun --help)"},
    {"deepspeed --num_accelerators 4 --bind_core_list 0-27,32-59 inference.py",
     "unknown here: '--bind_core_list': run ddprun under taskset (try ddprun --help)"},
    {"ddprun --as qsub prog",
     "--as is torchrun, mpirun, mpiexec, horovodrun, accelerate, deepspeed or srun, not "
     "'qsub' (try ddprun --help)"},
    {"srun -pgpu -t 10 --multi-prog f",
     "unknown here: '-pgpu': ask salloc or sbatch for it, or use --script slurm; '-t': "
     "use --timeout TIME; '--multi-prog': use -np 1 PROGRAM : -np 3 PROGRAM, or --app "
     "FILE (try ddprun --help)"},
    {"ddprun -n 4 -c 8 prog",
     "unknown here: '-c': mpirun's is -np here; srun's, CPUs of a rank, follows from "
     "--bind-to (try ddprun --help)"},
    {"ddprun --num_processes 2 train.py",
     "'--num_processes' is an option of accelerate: write 'ddprun --as accelerate launch "
     "...' for its command lines"},
    {"ddprun --num_gpus=2 train.py",
     "'--num_gpus=2' is an option of deepspeed: write 'ddprun --as deepspeed ...' for its "
     "command lines"},
    {"ddprun -np 2 --as mpirun prog",
     "--as must be the first option (try ddprun --help)"},
    {"ddprun --as", "--as takes a launcher (try ddprun --help)"},
};

LOOP_TEST(what_does_not_work_is_refused_at_once, ARRAY_LEN(wrong))
{
    struct opts o;
    struct ddp_err err;
    ck_assert_int_eq(parse_words(wrong[_i].line, &o, &err), -1);
    ck_assert_str_eq(err.text, wrong[_i].error);
    opts_finish(&o);
}
