! Rank 1 does not come to the barrier of its half.
program hang
#ifdef F08
  use mpi_f08
  type(MPI_Comm) :: half
  type(MPI_Request) :: request
#else
  use mpi
  integer :: half, request
#endif
  integer :: error, rank, one, total
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  one = 1
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, error)
  call MPI_Allreduce(one, total, 1, MPI_INTEGER, MPI_SUM, half, error)
  if (rank == 1) call sleep(600)
  call MPI_Ibarrier(half, request, error)
  call MPI_Wait(request, MPI_STATUS_IGNORE, error)
  if (rank /= 3) call sleep(600)
  call MPI_Finalize(error)
end program
